"""How the rows of Python become rows of DuckDB, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table looks like.

    Attributes:
        types: the Arrow type of every column.
        key: the columns of the primary key.
        json: the columns of JSON.
    """

    types: Mapping[str, pa.DataType]
    key: tuple[str, ...]
    json: frozenset[str]


def shapes(connection: duckdb.DuckDBPyConnection) -> dict[str, Shape]:
    """The shape of every table of the record that is open."""
    keys = connection.execute(
        "SELECT table_name, constraint_column_names FROM duckdb_constraints() "
        "WHERE constraint_type = 'PRIMARY KEY' AND database_name = current_database()"
    ).fetchall()
    found = {}
    for table, key in keys:
        empty = connection.sql(f"SELECT * FROM {quoted(table)} LIMIT 0")  # noqa: S608
        json_columns = [name for name, type in zip(empty.columns, empty.types, strict=True) if str(type) == "JSON"]
        types = {field.name: field.type for field in empty.to_arrow_table().schema}
        found[table] = Shape(types, tuple(key), frozenset(json_columns))
    return found


def checked(shapes: Mapping[str, Shape], table: str, row: Mapping[str, Any]) -> Shape:
    """The shape of `table`, if `row` fits into it.

    Raises:
        ValueError: no such table or column, or a part of the primary key is missing.
    """
    if (shape := shapes.get(table)) is None:
        raise ValueError(f"the record has no table {table}: it has {', '.join(sorted(shapes))}")
    for column in row:
        if column not in shape.types:
            raise ValueError(f"table {table} has no column {column}: it has {', '.join(shape.types)}")
    for column in shape.key:
        if row.get(column) is None:
            raise ValueError(f"a row of {table} lacks {column}, a part of its primary key")
    return shape


def plain(value: Any, is_json: bool) -> Any:
    """A value as DuckDB takes it: JSON as text, times without a zone in UTC."""
    if value is None:
        return None
    if is_json or isinstance(value, dict | list | tuple):
        return storable(json.dumps(value, ensure_ascii=False, default=dict))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return storable(value) if isinstance(value, str) else value


def storable(text: str) -> str:
    """A text as it can be kept: half a surrogate pair, as broken output has it, is not UTF-8 and becomes `?`."""
    return text.encode(errors="replace").decode()


def decoded(row: tuple[Any, ...], json_at: Sequence[int]) -> tuple[Any, ...]:
    """A row with the JSON at these places decoded."""
    values = list(row)
    for i in json_at:
        values[i] = None if row[i] is None else json.loads(row[i])
    return tuple(values)


def quoted(identifier: str) -> str:
    """A name as SQL writes it."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(value: str | Path) -> str:
    """A text as SQL writes it, where DuckDB takes no parameter."""
    return "'" + str(value).replace("'", "''") + "'"

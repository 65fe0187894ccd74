"""Numbered migrations of the record: `NNNN_what.sql`, applied in order, together or not at all."""

from __future__ import annotations

from importlib.resources import files

import duckdb


def migrations() -> list[tuple[int, str]]:
    """The number and the SQL of every migration, oldest first."""
    scripts = [entry for entry in files(__name__).iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name[:4]), script.read_text(encoding="utf-8")) for script in scripts)


def latest() -> int:
    """The schema that this version writes."""
    return migrations()[-1][0]


def version_of(connection: duckdb.DuckDBPyConnection) -> int | None:
    """The schema of the record that is open, `None` if it is a database of something else."""
    try:
        found = connection.execute("SELECT value::INTEGER FROM setting WHERE name = 'schema_version'").fetchone()
    except (duckdb.CatalogException, duckdb.BinderException, duckdb.ConversionException):
        return None
    return None if found is None else int(found[0])


def migrate(connection: duckdb.DuckDBPyConnection, version: int) -> None:
    """Brings the record that is open from schema `version` (0: an empty file) to the latest."""
    connection.execute("BEGIN")
    try:
        for number, sql in migrations():
            if number > version:
                connection.execute(sql)
        connection.execute("INSERT OR REPLACE INTO setting VALUES ('schema_version', ?)", [latest()])
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")

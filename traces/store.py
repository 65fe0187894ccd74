"""The record of a laboratory: one DuckDB file, one process that writes it, any number that read a copy.

    lab/bilevel.duckdb     the record; each row is on the disk when `put` returns
    lab/snapshot.duckdb    a copy of it, replaced whole now and then: all that a `Reader` opens
    lab/lock               held by the writer for as long as it lives; holds its process id
    lab/bilevel.vN.duckdb  the record as it was before an upgrade from schema N

DuckDB lets no second process open a file that is being written, not even to read; hence the snapshot.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from traces.disk import acquire, copy, in_one_line
from traces.errors import LabError, UserError
from traces.rows import checked, decoded, literal, plain, quoted, shapes, storable
from traces.schema import latest, migrate, version_of

DATABASE, SNAPSHOT, LOCK = "bilevel.duckdb", "snapshot.duckdb", "lock"

# The processors belong to the experiments. DuckDB otherwise starts a thread a core, and eight more for its files.
_ALONE: dict[str, str | bool | int | float | list[str]] = {"threads": 1, "async_threads": 1}

_WRONG_SQL = (duckdb.ProgrammingError, duckdb.DataError, duckdb.IntegrityError, duckdb.NotSupportedError)

# Publishing takes at most a twentieth of the writer's time, and happens at most once a second.
_PUBLISH_SHARE, _PUBLISH_SECONDS = 0.05, 1.0

_KNOWN = 100_000


class Reader:
    """The record as it was last published. It never changes and never writes to the laboratory; threads may share it.

    Connect again to see what has been published since.
    """

    def __init__(self, lab: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self.lab = lab
        self._connection = connection
        self._mutex = threading.RLock()

    def rows(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """The rows that a query answers, as dictionaries; values of JSON columns come decoded.

        Args:
            sql: one statement, with a `?` for each of `params`.
            *params: plain values, or lists of them for `unnest(?)`.

        Raises:
            UserError: the statement is wrong, or writes where it may not.
        """
        with self._mutex, in_one_line(self.lab, "reading"):
            try:
                result = self._connection.execute(sql, params)
                columns = result.description
                fetched = result.fetchall()
            except _WRONG_SQL as error:
                raise UserError(f"{str(error).splitlines()[0]} in the query: {' '.join(sql.split())}") from error
        names = [column[0] for column in columns]
        json_at = [i for i, column in enumerate(columns) if str(column[1]) == "JSON"]
        if json_at:
            fetched = [decoded(row, json_at) for row in fetched]
        return [dict(zip(names, row, strict=True)) for row in fetched]

    def get_text(self, hash: str) -> str:
        """The text that `Store.text` named so. Raises `LabError` if there is none."""
        found = self.rows("SELECT content FROM text WHERE hash = ?", hash)
        if not found:
            raise LabError(f"no text {hash!r} in {self.lab}: it was never recorded, or not published yet")
        return str(found[0]["content"])

    def close(self) -> None:
        """Lets go of the record."""
        with self._mutex:
            self._connection.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(lab: Path) -> Reader:
    """Opens the last published record, whether or not somebody is writing.

    A record of an older schema is upgraded in memory.

    Raises:
        LabError: there is no laboratory, or its schema is newer than this version of bilevel.
    """
    snapshot = lab / SNAPSHOT
    if not snapshot.is_file():
        raise _no_lab(lab)
    # In memory with the file attached, because DuckDB gives all connections of a process to one path the same
    # database: after a replacement they would go on showing the old one.
    connection = duckdb.connect(config={"temp_directory": tempfile.gettempdir()})
    with in_one_line(lab, "opening"):
        connection.execute(f"ATTACH {literal(snapshot)} AS bilevel (READ_ONLY)")
        connection.execute("USE bilevel")
        if (version := _checked_version(connection, snapshot)) < latest():
            connection.execute("COPY FROM DATABASE bilevel TO memory; USE memory; DETACH bilevel")
            migrate(connection, version)
    return Reader(lab, connection)


class Store(Reader):
    """The one writer of a laboratory; the threads of its process may share it."""

    def __init__(self, lab: Path, connection: duckdb.DuckDBPyConnection, lock: int) -> None:
        super().__init__(lab, connection)
        self._lock = lock
        self._shapes = shapes(connection)
        self._statements: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._known: set[tuple[Any, ...]] = set()  # rows that are there: a guess that makes `put` faster, never wrong
        self._in_transaction = False
        self._changed = True
        self._publish_after = 0.0

    @classmethod
    def open(cls, lab: Path, create: bool = True) -> Store:
        """Opens a laboratory for writing, after a kill as well; makes it, or upgrades its schema, where needed.

        Raises:
            BusyError: another process writes to it.
            LabError: there is none and `create` is false; it is not one, or of a newer schema.
            MachineError: the disk is full, or the folder may not be written to.
        """
        path = lab / DATABASE
        if lab.exists() and not lab.is_dir():
            raise LabError(f"{lab} is a file, not a laboratory: name a folder with --lab")
        if not create and not path.is_file():
            raise _no_lab(lab)
        with in_one_line(lab, "opening"):
            lab.mkdir(parents=True, exist_ok=True)
            lock = acquire(lab / LOCK)
            try:
                if not path.exists():
                    _make(path)
                connection = _upgraded(path)
            except BaseException:
                os.close(lock)
                raise
        store = cls(lab, connection, lock)
        try:
            store.publish(force=True)
        except BaseException:
            store.close()
            raise
        return store

    def put(self, table: str, **row: Any) -> None:
        """Inserts a row, or, where its primary key exists, updates the given columns; on the disk when it returns.

        Whatever is given for a JSON column is encoded (`None` is NULL), and `rows` gives it back; dictionaries and
        lists are encoded in any column. A time with a zone becomes UTC.

        Raises:
            ValueError: no such table or column, or a part of the primary key is missing.
            MachineError: the disk is full. What was written before is safe.
        """
        shape = checked(self._shapes, table, row)
        values = {column: plain(value, column in shape.json) for column, value in row.items()}
        key = [values[column] for column in shape.key]
        rest = [value for column, value in values.items() if column not in shape.key]
        with self._mutex, in_one_line(self.lab, f"writing to {table}"):
            update, insert = self._statements_for(table, tuple(row), shape.key)
            # Whichever is likelier first: ON CONFLICT takes three times as long as either (DuckDB 2.0). A failed
            # statement ends a transaction, so that there the update, which cannot fail, always comes first.
            if (table, *key) in self._known or self._in_transaction:
                if not self._updates(update, rest + key):
                    self._connection.execute(insert, list(values.values()))
            else:
                try:
                    self._connection.execute(insert, list(values.values()))
                except duckdb.ConstraintException:
                    if not self._updates(update, rest + key):
                        raise
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known.add((table, *key))
            self._changed = True

    def put_many(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Does what `put` does for many rows with the same columns, at once: all of them or none.

        Of rows with the same primary key the last one counts. Fifty rows take as long as three or four calls of `put`.

        Raises:
            ValueError: as `put`, or the rows differ in their columns.
        """
        listed = list(rows)
        if not listed:
            return
        columns = tuple(listed[0])
        shape = checked(self._shapes, table, listed[0])
        if any(row.keys() != listed[0].keys() for row in listed):
            raise ValueError(f"rows for {table} differ in their columns: give each of them {', '.join(columns)}")
        last = {tuple(row[column] for column in shape.key): row for row in listed}.values()
        arrays = {
            column: pa.array([plain(row[column], column in shape.json) for row in last], shape.types[column])
            for column in columns
        }
        names = ", ".join(map(quoted, columns))
        changes = ", ".join(f"{quoted(c)} = excluded.{quoted(c)}" for c in columns if c not in shape.key)
        with self._mutex, in_one_line(self.lab, f"writing to {table}"):
            self._connection.register("incoming", pa.table(arrays))
            try:
                self._connection.execute(
                    f"INSERT INTO {quoted(table)} ({names}) SELECT {names} FROM incoming "  # noqa: S608
                    f"ON CONFLICT DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"
                )
            finally:
                self._connection.unregister("incoming")
            self._changed = True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is put inside is on the disk together when it ends, or not at all if it raises. Other threads wait."""
        with self._mutex:
            if self._in_transaction:
                yield
                return
            self._connection.execute("BEGIN")
            self._in_transaction = True
            try:
                yield
                with in_one_line(self.lab, "writing"):
                    self._connection.execute("COMMIT")
            except BaseException:
                with suppress(duckdb.Error):  # a commit that failed has rolled back already
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._in_transaction = False

    def text(self, content: str) -> str:
        """Stores a text once and returns its SHA-256, by which rows refer to it."""
        content = storable(content)
        name = hashlib.sha256(content.encode()).hexdigest()
        with self._mutex:
            if not self.rows("SELECT 1 FROM text WHERE hash = ?", name):
                self.put("text", hash=name, content=content)
        return name

    def publish(self, force: bool = False) -> None:
        """Replaces the snapshot that readers open, unless nothing changed.

        Without `force` it does so only now and then, so that it can be called after every row. Inside a transaction it
        does nothing.

        Raises:
            MachineError: the disk is full. The former snapshot stays.
        """
        begun = time.monotonic()
        with self._mutex:
            if self._in_transaction or not self._changed or (begun < self._publish_after and not force):
                return
            with in_one_line(self.lab, "publishing"):
                self._connection.execute("CHECKPOINT")
                copy(self.lab / DATABASE, self.lab / SNAPSHOT)
            self._changed = False
            now = time.monotonic()
            self._publish_after = now + max(_PUBLISH_SECONDS, (now - begun) / _PUBLISH_SHARE)

    def close(self) -> None:
        """Publishes, and lets others write."""
        with self._mutex:
            if self._lock < 0:
                return
            try:
                self.publish(force=True)
            finally:
                self._connection.close()
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> Store:
        return self

    def _updates(self, update: Any, values: list[Any]) -> bool:
        """Whether the update met a row."""
        met = self._connection.execute(update, values).fetchone()
        return met is not None and bool(met[0])

    def _statements_for(self, table: str, columns: tuple[str, ...], key: Sequence[str]) -> tuple[Any, Any]:
        """The UPDATE and the INSERT of a row with these columns, parsed once."""
        if (found := self._statements.get((table, *columns))) is None:
            where = " AND ".join(f"{quoted(column)} = ?" for column in key)
            changes = ", ".join(f"{quoted(column)} = ?" for column in columns if column not in key)
            update = f"UPDATE {quoted(table)} SET {changes}" if changes else f"SELECT count(*) FROM {quoted(table)}"  # noqa: S608
            insert = (
                f"INSERT INTO {quoted(table)} ({', '.join(map(quoted, columns))}) "  # noqa: S608
                f"VALUES ({', '.join('?' * len(columns))})"
            )
            parse = self._connection.extract_statements
            found = parse(f"{update} WHERE {where}")[0], parse(insert)[0]
            self._statements[(table, *columns)] = found
        return found


def _no_lab(lab: Path) -> LabError:
    return LabError(f"no laboratory in {lab}: `bilevel run` or `bilevel demo` makes one, --lab names another folder")


def _make(path: Path) -> None:
    """Makes a record beside its place and moves it there, so that there is no half made one."""
    new = path.with_suffix(".new")
    for leftover in path.parent.glob(f"{new.name}*"):
        leftover.unlink()
    with duckdb.connect(str(new), config=_ALONE) as connection:
        migrate(connection, 0)
    os.replace(new, path)


def _upgraded(path: Path) -> duckdb.DuckDBPyConnection:
    """Opens a record for writing; one of an older schema is copied to `bilevel.vN.duckdb` and upgraded."""
    connection = duckdb.connect(str(path), config=_ALONE)
    try:
        if (version := _checked_version(connection, path)) < latest():
            connection.close()  # which also brings the file up to date with its log
            copy(path, path.with_suffix(f".v{version}.duckdb"))
            connection = duckdb.connect(str(path), config=_ALONE)
            migrate(connection, version)
    except BaseException:
        connection.close()
        raise
    return connection


def _checked_version(connection: duckdb.DuckDBPyConnection, path: Path) -> int:
    version = version_of(connection)
    if version is None:
        raise LabError(f"{path} is a database, but not of a laboratory: name another folder with --lab")
    if version > latest():
        raise LabError(
            f"{path} is of schema {version}, this bilevel reads up to {latest()}: upgrade it, or name another --lab"
        )
    return version

"""What leaves the record is what others can read."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.errors import MachineError
from traces.export import results, write_parquet, write_results
from traces.store import Store, connect

MOVE = {"constant": "DEPTH", "direction": "up", "before": 4, "after": 8}


def put(store: Store, index: int, status: str | None, **columns: Any) -> None:
    store.put("experiment", run="r", index=index, step="decided", status=status, **columns)


def test_results_are_written_as_autoresearch_writes_them(store: Store) -> None:
    commit, memory = "a1b2c3d4e5f6", int(44.04 * 2**30)
    put(store, 0, "baseline", commit=commit, score=0.9979, peak_memory=memory)
    put(store, 1, "keep", commit=commit[::-1], score=0.9932, peak_memory=memory, hypothesis="increase LR\tto 0.04\n")
    put(store, 2, "discard", commit=commit, score=1.005, peak_memory=memory, moves=[MOVE])
    put(store, 3, "crash", commit=commit, peak_memory=memory, hypothesis="double model width (OOM)")
    put(store, 4, "timeout", commit=commit, hypothesis='a "slow" idea')
    put(store, 5, "invalid", commit=commit, score=0.1, hypothesis="cheat")
    put(store, 6, "refused")
    put(store, 7, None, hypothesis="still running")
    assert results(store, "r") == (
        "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
        "a1b2c3d\t0.997900\t44.0\tkeep\tbaseline\n"
        "6f5e4d3\t0.993200\t44.0\tkeep\tincrease LR to 0.04\n"
        "a1b2c3d\t1.005000\t44.0\tdiscard\tDEPTH 4 to 8\n"
        "a1b2c3d\t0.000000\t0.0\tcrash\tdouble model width (OOM)\n"
        "a1b2c3d\t0.000000\t0.0\tcrash\ttimeout: a 'slow' idea\n"
        "a1b2c3d\t0.000000\t0.0\tcrash\tinvalid: cheat\n"
        "0000000\t0.000000\t0.0\tcrash\trefused: no description\n"
    )


@pytest.fixture(scope="module")
def open_store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Store.open(tmp_path_factory.mktemp("export") / "lab") as store:
        yield store


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=30))
def test_no_hypothesis_breaks_the_table(open_store: Store, hypothesis: str) -> None:
    put(open_store, 1, "discard", score=1.0, hypothesis=hypothesis)
    header, line = csv.reader(io.StringIO(results(open_store, "r")), delimiter="\t")
    assert len(header) == len(line) == 5
    assert line[:4] == ["0000000", "1.000000", "0.0", "discard"]


def test_one_file_a_run(filled: Store, tmp_path: Path) -> None:
    written = write_results(filled, tmp_path)
    runs = [row["id"] for row in filled.rows("SELECT id FROM run")]
    assert sorted(written) == sorted(tmp_path / run / "results.tsv" for run in runs)
    assert (tmp_path / "evolve-1/level1/results.tsv").read_text() == results(filled, "evolve-1/level1")


def test_parquet_holds_every_table_as_it_is(filled: Store, tmp_path: Path) -> None:
    filled.publish(force=True)
    folder = tmp_path / "it's here"
    with connect(filled.lab) as reader:
        written = write_parquet(reader, folder)
    tables = {row["table_name"] for row in filled.rows("SELECT table_name FROM duckdb_tables()")}
    assert {path.stem for path in written} == tables
    assert len(tables) > 10
    for table in tables:
        rows = duckdb.sql("SELECT * FROM read_parquet(?) ORDER BY ALL", params=[str(folder / f"{table}.parquet")])
        expected = filled._connection.sql(f'SELECT * FROM "{table}" ORDER BY ALL')
        assert (rows.columns, rows.fetchall()) == (expected.columns, expected.fetchall())


def test_a_folder_that_cannot_be_made_is_one_line(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (write_results, write_parquet):
        with pytest.raises(MachineError, match="exporting failed"):
            write(filled, tmp_path / "file" / "here")

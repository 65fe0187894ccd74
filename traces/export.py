"""The record for others: `results.tsv` as karpathy/autoresearch writes it, and every table as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traces.disk import in_one_line
from traces.rows import literal, quoted
from traces.store import Reader

HEADER = ("commit", "val_bpb", "memory_gb", "status", "description")


def results(reader: Reader, run: str) -> str:
    r"""The decided experiments of a run as `results.tsv`, one line each, the baseline first.

    The form is that of `program.md` in karpathy/autoresearch: a header; the commit in 7 characters, the metric with six
    digits, the peak memory in GB (2^30 bytes) with one, `keep`, `discard` or `crash`, and a description. Whatever else
    ended an experiment (a timeout, a refused edit) is a `crash` with 0.000000 and 0.0, and named in the description.
    """
    lines = ["\t".join(HEADER)]
    for row in reader.rows(
        "SELECT index, commit, score, peak_memory, status, hypothesis, moves FROM experiment "
        "WHERE run = ? AND status IS NOT NULL ORDER BY index",
        run,
    ):
        status = {"baseline": "keep", "keep": "keep", "discard": "discard"}.get(row["status"], "crash")
        crashed = status == "crash"
        fields = (
            (row["commit"] or "")[:7] or "0000000",
            f"{0.0 if crashed else row['score']:.6f}",
            f"{0.0 if crashed else (row['peak_memory'] or 0) / 2**30:.1f}",
            status,
            _description(row),
        )
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def write_results(reader: Reader, folder: Path) -> list[Path]:
    """Writes `folder/<run>/results.tsv` for every run; gives the files.

    Raises:
        MachineError: the disk is full, or the folder may not be written to.
    """
    written = []
    for row in reader.rows("SELECT id FROM run ORDER BY created, id"):
        path = folder / row["id"] / "results.tsv"
        with in_one_line(folder, "exporting"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(results(reader, row["id"]), encoding="utf-8")
        written.append(path)
    return written


def write_parquet(reader: Reader, folder: Path) -> list[Path]:
    """Writes `folder/<table>.parquet` for every table; gives the files.

    Raises:
        MachineError: the disk is full, or the folder may not be written to.
    """
    with in_one_line(folder, "exporting"):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for row in reader.rows(
        "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() ORDER BY 1"
    ):
        path = folder / f"{row['table_name']}.parquet"
        reader.rows(f"COPY {quoted(row['table_name'])} TO {literal(path)} (FORMAT parquet)")
        written.append(path)
    return written


def _description(row: dict[str, Any]) -> str:
    """What the experiment tried, on one line and without the quotes that readers of tables take for their own."""
    if row["status"] == "baseline":
        return "baseline"
    moves = ", ".join(f"{move['constant']} {move['before']} to {move['after']}" for move in row["moves"] or ())
    said = " ".join((row["hypothesis"] or moves or "no description").split()).replace('"', "'")
    return said if row["status"] in ("keep", "discard", "crash") else f"{row['status']}: {said}"

"""Numbered migrations of the record, applied in order by `traces.store`."""

from __future__ import annotations

from importlib.resources import files


def migrations() -> list[tuple[int, str]]:
    """The number and the SQL of every migration (`NNNN_what.sql`), oldest first."""
    scripts = [entry for entry in files(__name__).iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name[:4]), script.read_text(encoding="utf-8")) for script in scripts)

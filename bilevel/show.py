"""Tables of what the record holds, for a terminal or a log; `traces.summary` says what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bilevel.progress import STYLES
from bilevel.text import NOTHING, change_of, duration, interval, number, one_line, plain, share

Row = Mapping[str, Any]

SELF_REPORTED = "*self-reported*"
_WIDE = 200
"""Columns where there is no terminal to measure."""


def console_for(stderr: bool = False) -> Console:
    """A console that takes every text as it is: no markup, no colours of its own finding."""
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=_WIDE, color_system=None)
    return console


def studies(rows: Sequence[Row]) -> RenderableType:
    """Every study in a line."""
    table = _table("study", "state", "task", "model", "begun (UTC)", *_right("runs", "trainings", "noise", "confirmed"))
    for row in rows:
        confirmed = next(iter(row["confirmed"]), None)
        table.add_row(
            Text(one_line(row["id"])),
            _state(row["status"]),
            Text(_task(row)),
            Text(_model(row)),
            f"{row['created']:%Y-%m-%d %H:%M}",
            str(row["run_count"]),
            str(row["experiments"]),
            number(row["noise"]),
            _gain(confirmed) if confirmed else NOTHING,
        )
    return table


def study(row: Row, writer: int | None) -> Iterator[RenderableType]:
    """A study with its runs, its meta-iterations and its confirmed gain.

    Args:
        row: of `traces.summary.study`.
        writer: the process that is writing to the laboratory, if any.
    """
    took = (row["finished"] - row["created"]).total_seconds() if row["finished"] else None
    when = f"begun {row['created']:%Y-%m-%d %H:%M} UTC" + (f", took {duration(took)}" if took is not None else "")
    yield Text.assemble((one_line(row["id"]), "bold"), "  ", _state(row["status"]), f"  {when}")
    noise = f"{number(row['noise'])} over {row['noise_n']} seeds" if row["noise"] is not None else "not measured"
    yield Text(f"task {_task(row)}, seed {row['seed']}, noise floor {noise}")
    if row["model"]:
        yield Text(f"model {_model(row)}")
    yield Text(_confinement(row["tier"]), style="yellow" if row["tier"] == "none" else "")
    if row["integrity_events"]:
        yield Text(f"{row['integrity_events']} integrity events: `bilevel sql 'FROM integrity_event'`", style="red")
    if row["status"] == "running" and writer is None:
        yield Text("it was interrupted, and nothing is running now: `bilevel resume` goes on", style="yellow")
    elif row["status"] == "running":
        yield Text(f"process {writer} is working on it; these figures are of the last snapshot")
    elif row["status"] in ("stopped", "failed"):
        yield Text("`bilevel resume` goes on with it", style="yellow")
    searches = [run for run in row["runs"] if run["kind"] == "search"]
    level1 = [run for run in searches if run["arm"] == "level1"]
    if searches:
        yield _runs(level1 or searches)
        yield _stagnation(level1 or searches)
    others = [run for run in row["runs"] if run["kind"] != "search"]
    if trials := len(searches) - len(level1 or searches):
        yield Text(f"\nand {trials} runs of trials, {len(others)} series of measurements: --json lists them", "dim")
    if row["meta_iterations"]:
        yield meta_iterations(row["meta_iterations"])
    if row["confirmed"]:
        yield _confirmed(row["confirmed"], row["self_reported"])


def _runs(rows: Sequence[Row]) -> Table:
    mark = f" {SELF_REPORTED}" if any(row["self_reported"] for row in rows) else ""
    names = ("experiments", f"baseline{mark}", f"best{mark}", "gain", "kept", "significant", "failed", "integrity")
    table = _table("run", "state", *_right(*names), title="Runs of level 1" if rows[0]["arm"] == "level1" else "Runs")
    for row in rows:
        stuck = row["stagnation"]
        at = "" if row["best_index"] is None else f" (#{row['best_index']})"
        table.add_row(
            Text(one_line(row["id"])),
            _state(row["status"]),
            f"{row['done']}/{row['planned']}",
            number(row["baseline"]),
            number(row["best"]) + at,
            number(row["gain"], signed=True),
            f"{row['keeps']} ({share(stuck['keep_rate'])})",
            str(row["significant_keeps"]),
            share(stuck["failure_rate"]),
            Text(str(row["integrity_events"]), style="red" if row["integrity_events"] else ""),
        )
    return table


def _stagnation(rows: Sequence[Row]) -> Table:
    names = ("repeated", "same constant again", "entropy, bits", "longest without keep", "since significant keep")
    table = _table("run", *_right(*names, "directions tried"), title="How stuck they are")
    for row in rows:
        stuck = row["stagnation"]
        table.add_row(
            Text(one_line(row["id"])),
            share(stuck["repeated"]),
            share(stuck["same_constant"]),
            NOTHING if stuck["entropy"] is None else f"{stuck['entropy']:.2f}",
            _count(stuck["longest_without_keep"]),
            _count(stuck["since_significant"]),
            _count(stuck["tried"]),
        )
    return table


def meta_iterations(rows: Sequence[Row]) -> Table:
    """The turns of the outer loop, each with its decision and the ground for it."""
    names = ("gain", "interval", "pairs", "detectable", "decisions changed")
    table = _table("#", "mechanism", "decision", *_right(*names), "why", title="Meta-iterations")
    for row in rows:
        decision = row["decision"] or row["step"]
        confidence = "" if row["confidence"] is None or row["low"] is None else f" at {share(row['confidence'])}"
        compared = row["calls_compared"]
        table.add_row(
            str(row["index"]),
            Text(one_line(row["mechanism"] or NOTHING)),
            Text(one_line(decision), style=STYLES.get(decision, "")),
            number(row["gain"], signed=True),
            interval(row["low"], row["high"]) + confidence,
            _count(row["pairs"]),
            number(row["detectable"]),
            NOTHING if compared is None else f"{row['calls_differing']}/{compared}",
            Text(one_line(row["reason"] or row["diagnosis"] or "", 160)),
        )
    return table


def _confirmed(rows: Sequence[Row], self_reported: bool) -> Table:
    title = f"Confirmed on fresh seeds{f' {SELF_REPORTED}' if self_reported else ''}"
    table = _table("split", *_right("baseline", "best", "gain", "interval", "seeds"), title=title)
    for row in rows:
        table.add_row(
            row["split"],
            number(row["baseline"]),
            number(row["best"]),
            number(row["gain"], signed=True),
            f"{interval(row['low'], row['high'])} at {share(row['confidence'])}",
            str(row["n"]),
        )
    return table


def log(run: str, rows: Sequence[Row]) -> Iterator[RenderableType]:
    """The experiments of a run."""
    yield Text(one_line(run), style="bold")
    if not rows:
        yield Text("no experiment has begun yet")
        return
    mark = f" {SELF_REPORTED}" if rows[0]["self_reported"] else ""
    table = _table(*_right("#", "from"), "decision", *_right(f"score{mark}", "seconds"), "change", "why")
    for row in rows:
        status = row["status"] or row["step"]
        said = row["detail"] or row["hypothesis"] or ""
        table.add_row(
            str(row["index"]),
            NOTHING if row["parent"] is None else str(row["parent"]),
            Text(one_line(status) + (" *" if row["significant"] else ""), style=STYLES.get(status, "")),
            number(row["score"]),
            NOTHING if row["train_seconds"] is None else f"{row['train_seconds']:.1f}",
            Text(change_of(row) or NOTHING),
            Text(one_line(said, 160)),
            style="dim" if row["inherited"] else "",
        )
    yield table
    notes = []
    if any(row["significant"] for row in rows):
        notes.append("* better by more than twice the noise floor")
    if any(row["inherited"] for row in rows):
        notes.append(f"the first {sum(bool(row['inherited']) for row in rows)} come from the run it forked from")
    if notes:
        yield Text("; ".join(notes), style="dim")


def diff(text: str) -> Iterator[Text]:
    """A unified diff, its lines coloured where there are colours."""
    styles = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}
    for line in plain(text).splitlines():
        style = next((style for start, style in styles.items() if line.startswith(start)), "")
        yield Text(line, style=style)


def table(rows: Sequence[Row], width: int = _WIDE) -> RenderableType:
    """Whatever a query answered: a row a line, or, if that is far wider than `width`, a column a line."""
    if not rows:
        return Text("no rows", style="dim")
    cells = [[_cell(value) for value in row.values()] for row in rows]
    names = [one_line(name) for name in rows[0]]
    widest = sum(max(map(len, column)) + 2 for column in zip(names, *cells, strict=True))
    if widest > 2 * width:
        long = max(map(len, names))
        records = ("\n".join(f"{n:<{long}}  {c}" for n, c in zip(names, row, strict=True)) for row in cells)
        return Text("\n\n".join(records))
    found = _table(*names)
    for row in cells:
        found.add_row(*map(Text, row))
    return found


def show(console: Console, parts: RenderableType | Iterable[RenderableType]) -> None:
    """Prints one thing or several; tables after a free line."""
    for part in parts if isinstance(parts, Iterator) else [parts]:
        # Several tables belong together, one alone is the answer.
        if isinstance(part, Table) and isinstance(parts, Iterator):
            console.print()
        console.print(part, soft_wrap=isinstance(part, Text))


def _table(*columns: str | tuple[str, str], title: str | None = None) -> Table:
    found = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold dim")
    found.title, found.title_justify, found.title_style = title, "left", "bold"
    for column in columns:
        name, justify = column if isinstance(column, tuple) else (column, "left")
        found.add_column(Text(name), justify="right" if justify == "right" else "left", overflow="fold")
    return found


def _right(*names: str) -> list[tuple[str, str]]:
    return [(name, "right") for name in names]


def _state(status: str) -> Text:
    styles = {"done": "green", "running": "cyan", "stopped": "yellow", "failed": "red"}
    return Text(one_line(status), style=styles.get(status, ""))


def _task(row: Row) -> str:
    return one_line(f"{row['task_name']} ({row['task']})" if row["task_name"] else row["task"])


def _model(row: Row) -> str:
    stand_in = ", a stand-in for a language model" if row["model_is_stand_in"] else ""
    return one_line(row["model"]) + stand_in if row["model"] else NOTHING


def _confinement(tier: str | None) -> str:
    if tier is None:
        return "confinement not known yet"
    return "experiments ran without confinement: no bubblewrap" if tier == "none" else f"experiments confined by {tier}"


def _gain(row: Row) -> str:
    return f"{number(row['gain'], signed=True)} {interval(row['low'], row['high'])}"


def _count(value: Any) -> str:
    return NOTHING if value is None else str(int(value))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else one_line(value, 200)

"""What a study is doing, while it does it: a live view on a terminal, one line an event anywhere else.

`watching` gives the `Report` that a study is begun with. Events come from several threads and are data, not commands: a
kind that is not known is passed over, a fact that is missing is shown as a dash.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bilevel.text import change_of, duration, interval, number, one_line, share

Report = Callable[[str, dict[str, Any]], None]

STYLES = {
    "keep": "green",
    "discard": "dim",
    "baseline": "cyan",
    "adopt": "bold green",
    "reject": "red",
    "inert": "yellow",
    "invalid": "red",
    "indecisive": "yellow",
    "crash": "red",
    "timeout": "red",
    "refused": "yellow",
    "pruned": "yellow",
    "confirmed": "bold",
    "stage": "bold",
}
_LAST_DECISIONS = 5
_MOST_RUNS = 12


@dataclass
class RunTally:
    """What is known of one run."""

    planned: int | None = None
    done: int = 0
    tried: int = 0
    kept: int = 0
    baseline: float | None = None
    best: float | None = None
    training: dict[int, float] = field(default_factory=dict)


@dataclass
class Tally:
    """What the events so far add up to.

    Attributes:
        planned: trainings of the whole study, `None` if it was not said.
        done: trainings that have ended, those before a `resume` counted in.
        here: those of them that this process has seen.
        working: when the first of them began.
        runs: the runs of the part that is being done now.
    """

    began: float
    planned: int | None = None
    done: int = 0
    here: int = 0
    working: float | None = None
    title: str = ""
    minimize: bool = True
    runs: dict[str, RunTally] = field(default_factory=dict)

    def add(self, kind: str, data: Mapping[str, Any], now: float) -> None:
        """Takes in one event."""
        if kind == "study":
            self.planned, self.done = data.get("trainings"), data.get("done") or 0
            self.minimize = data.get("direction") != "maximize"
        elif kind == "stage":
            self.title, self.runs = one_line(data.get("title", "")), {}
        elif kind in ("measuring", "training", "measured", "decided"):
            self.working = now if self.working is None else self.working
            run = self.runs.setdefault(one_line(data.get("run", "")), RunTally())
            index = data.get("index", -1)
            if kind == "measuring":
                run.planned = data.get("count")
            elif kind == "training":
                run.training[index] = now
            else:
                run.training.pop(index, None)
                run.done, self.done, self.here = run.done + 1, self.done + 1, self.here + 1
                self._decided(run, data)

    def _decided(self, run: RunTally, data: Mapping[str, Any]) -> None:
        if data.get("index") != 0 and "best" in data:
            run.tried += 1
            run.kept += data.get("status") == "keep"
        run.baseline, run.best = data.get("baseline", run.baseline), data.get("best", run.best)

    def gain(self, run: str) -> float | None:
        """Of a run whose baseline is known; positive is better."""
        known = self.runs.get(run, RunTally())
        if known.baseline is None or known.best is None:
            return None
        return (known.baseline - known.best) * (1 if self.minimize else -1)

    def left(self, now: float) -> float | None:
        """Seconds to the end, as far as the trainings so far let guess."""
        if self.planned is None or self.working is None or self.here < 2:
            return None
        return max(0, self.planned - self.done) * (now - self.working) / self.here


def describe(kind: str, data: Mapping[str, Any], tally: Tally) -> tuple[str, str] | None:
    """A word and a line for an event that `tally` has taken in, or `None` for a kind that is not known."""
    get = data.get
    where, turn = f"{one_line(get('run', ''))} #{get('index')}", f"meta-iteration {get('index')}"
    if kind == "study":
        model = f"{get('model')}, a stand-in for a language model" if get("stand_in") else get("model")
        facts = [get("study"), f"task {get('task')}", f"model {model}", f"{get('slots')} at a time"]
        tier = "not confined: no bubblewrap" if get("tier") == "none" else f"confined by {get('tier')}"
        return kind, one_line(", ".join(map(str, [*facts, tier, f"{get('trainings')} trainings at most"])))
    if kind in ("stage", "note"):
        return kind, one_line(get("title", get("text", "")))
    if kind == "picture":
        return kind, one_line(get("path", ""))
    if kind == "measuring":
        return kind, f"{one_line(get('run', ''))}: {get('count')} trainings"
    if kind == "training":
        return kind, where
    if kind == "measured":
        sealed = f"  sealed {number(get('sealed_score'))}" if get("sealed_score") is not None else ""
        text = f"{where:<28} {number(get('score')):>9}{sealed}  {one_line(get('label', ''))}, seed {get('seed')}"
        return _status(data, kind), text + _why(data)
    if kind == "decided":
        mark = "*" if get("significant") else " "
        best = f"best {number(get('best'))} ({number(tally.gain(one_line(get('run', ''))), signed=True)})"
        change = change_of(data) or one_line(get("hypothesis") or "", 60)
        return _status(data, kind), f"{where:<28} {number(get('score')):>9}{mark} {best}  {change}{_why(data)}"
    if kind == "noise":
        low, high = number(get("low")), number(get("high"))
        return kind, f"sd {number(get('sd'))} [{low}, {high}] over {get('n')} seeds, mean {number(get('mean'))}"
    if kind == "diagnosed":
        return kind, one_line(f"{turn}: {get('diagnosis')}")
    if kind == "researched":
        return kind, one_line(f"{turn}: {get('mechanism')}: {get('rationale')}")
    if kind == "checked":
        findings = get("findings") or ()
        listed = [findings] if isinstance(findings, str) else [str(finding) for finding in findings]
        return kind, one_line(f"{turn}: {'passed' if get('ok') else 'failed'}. {'; '.join(listed)}")
    if kind == "verdict":
        grounds = ""
        if get("pairs"):
            compared = f"{get('calls_differing')} of {get('calls_compared')} decisions differ"
            grounds = f"gain {_with_interval(data)}, {get('pairs')} pairs, {compared}: "
        return str(get("decision") or kind), one_line(f"{turn}, {get('mechanism')}: {grounds}{get('reason')}")
    if kind == "confirmed":
        change = f"{number(get('baseline'))} → {number(get('best'))}"
        return kind, one_line(f"{get('split')}: gain {_with_interval(data)}, {get('n')} seeds, {change}")
    return None


def _status(data: Mapping[str, Any], otherwise: str) -> str:
    return one_line(data.get("status") or otherwise)


def _why(data: Mapping[str, Any]) -> str:
    return f"  ({one_line(data['detail'], 100)})" if data.get("detail") else ""


def _with_interval(data: Mapping[str, Any]) -> str:
    ends = interval(data.get("low"), data.get("high"))
    return f"{number(data.get('gain'), signed=True)} {ends} at {share(data.get('confidence'))}"


@contextmanager
def watching(console: Console) -> Iterator[Report]:
    """Gives a `Report` that shows what it is told on `console` until the block ends. Threads may share it."""
    tally, lock = Tally(time.monotonic()), threading.Lock()
    live = console.is_terminal and os.environ.get("TERM") != "dumb"
    view = _Live(console, tally, lock) if live else _Lines(console, tally)

    def report(kind: str, data: dict[str, Any]) -> None:
        now = time.monotonic()
        with lock:
            tally.add(kind, data, now)
            described = describe(kind, data, tally)
            done = "" if tally.planned is None else f"{tally.done}/{tally.planned}"
        # Without the lock: printing draws the live view, which takes it.
        if described is not None:
            view.show(kind, *described, f"{duration(now - tally.began):>8}  {done:>9}")

    with view:
        yield report


class _Lines:
    """One line an event: the time, how many trainings are done, a word, the facts."""

    def __init__(self, console: Console, tally: Tally) -> None:
        self.console, self.tally = console, tally

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, kind: str, word: str, text: str, when: str) -> None:
        """Prints an event."""
        self.console.print(f"{when}  {word:<10}  {text}", markup=False, highlight=False, soft_wrap=True)


class _Live(_Lines):
    """A table of the runs at work, the last decisions, and a bar; what is worth keeping scrolls past above it."""

    def __init__(self, console: Console, tally: Tally, lock: threading.Lock) -> None:
        super().__init__(console, tally)
        self.lock = lock
        self.last: list[Text] = []
        self.live = Live(console=console, get_renderable=self._view, refresh_per_second=4, transient=True)

    def __enter__(self) -> None:
        self.live.start()

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def show(self, kind: str, word: str, text: str, when: str) -> None:
        """Prints an event, or keeps it for the view."""
        if kind in ("training", "measuring"):
            return
        line = Text.assemble((f"{word:<10}", STYLES.get(word, "")), "  ", text)
        if kind in ("decided", "measured"):
            line.no_wrap, line.overflow = True, "ellipsis"
            self.last = [*self.last, line][-_LAST_DECISIONS:]
            return
        self.live.console.print(Text(f"\n{text}", style="bold") if kind == "stage" else line)

    def _view(self) -> RenderableType:
        with self.lock:
            return Group(*self._parts(time.monotonic()))

    def _parts(self, now: float) -> Iterator[RenderableType]:
        tally = self.tally
        if tally.runs:
            yield self._runs(now)
        yield from self.last
        if tally.planned:
            left = tally.left(now)
            bar = Table.grid(padding=(0, 1))
            bar.add_row(
                ProgressBar(total=tally.planned, completed=tally.done, width=32),
                f"{tally.done} of {tally.planned} trainings",
                f"{duration(now - tally.began)} so far",
                "" if left is None else f"about {duration(left)} left",
            )
            yield bar

    def _runs(self, now: float) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("run", "done", "baseline", "best", "gain", "kept", "training now"):
            table.add_column(name, justify="left" if name in ("run", "training now") else "right", no_wrap=True)
        busy_last = sorted(self.tally.runs.items(), key=lambda item: bool(item[1].training))
        for name, run in busy_last[-_MOST_RUNS:]:
            planned = "" if run.planned is None else f"/{run.planned}"
            training = ", ".join(f"#{index} {duration(now - since)}" for index, since in run.training.items())
            table.add_row(
                Text(name),
                f"{run.done}{planned}",
                number(run.baseline),
                number(run.best),
                number(self.tally.gain(name), signed=True),
                f"{run.kept}/{run.tried} {share(run.kept / run.tried)}" if run.tried else "",
                training,
            )
        return table

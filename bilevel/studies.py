"""What a study does, from its first measurement to its last: each part is one call, and each can be gone on with.

A study is written down before it does anything. `resume` reads it and does the same again; whatever is recorded is not
done twice.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

import inner.strategy
from benchmarks.gpt.prepare import prepare
from bilevel.config import Choices
from inner.corpus import Corpus
from inner.executor import LocalExecutor, default_slots
from inner.loop import Plan, run_inner
from inner.measure import Sample, measure
from inner.model import load_model
from inner.record import Bench, Report, derive_seed, history_of, now, put_strategy
from inner.task import Task, load_task
from outer.loop import run_outer
from outer.researcher import CatalogueResearcher
from outer.search import StrategySearch, Trials
from traces import charts
from traces.errors import LabError, MachineError, Stopped, TaskError, UserError
from traces.stats import noise_floor
from traces.store import Store
from traces.summary import confirmed_gain


def begin(lab: Path, choices: Choices, report: Report) -> str:
    """Begins a study and brings it to its end.

    Args:
        lab: folder of the laboratory, made if it is not there.
        choices: what to do.
        report: told of everything that happens, from several threads.

    Returns:
        The study's id.

    Raises:
        UserError: a choice, the task, the machine or the laboratory does not hold; nothing was begun.
        Stopped: asked to stop; `resume` goes on.
    """
    task = _task(choices)
    strategy = _strategy(choices)
    load_model(choices.model)
    default_slots(task)
    with Store.open(lab) as store:
        count = len(store.rows("SELECT id FROM study WHERE command = ?", choices.command))
        study = f"{choices.command}-{count + 1}"
        store.put(
            "study",
            id=study,
            command=choices.command,
            task=choices.task,
            config=choices.model_dump() | {"strategy_source": store.text(strategy), "task_hash": task.hash},
            seed=choices.seed,
            status="running",
            machine=_machine(),
            created=now(),
        )
        store.publish(force=True)
        _carry_on(store, lab, study, task, choices, strategy, report)
    return study


def resume(lab: Path, study: str | None, report: Report) -> str:
    """Goes on with a study that was stopped or killed; by default with the last one that has not ended.

    Raises:
        LabError: there is no such study, or nothing to go on with.
        TaskError: the task is not the one that the study was begun with.
    """
    with Store.open(lab, create=False) as store:
        rows = store.rows("SELECT * FROM study WHERE ? IS NULL OR id = ? ORDER BY created", study, study)
        open_rows = [row for row in rows if row["status"] != "done"]
        if not rows or (study is None and not open_rows):
            what = f"no study {study}" if study else "no study that was left unfinished"
            raise LabError(f"{lab} has {what}: `bilevel status` lists them")
        if not open_rows:
            raise LabError(f"study {study} in {lab} is done: `bilevel status {study}` shows it")
        row = open_rows[-1]
        config = dict(row["config"])
        strategy = store.get_text(config.pop("strategy_source"))
        task_hash = config.pop("task_hash")
        choices = Choices(**config)
        task = _task(choices)
        if task.hash != task_hash:
            raise TaskError(f"{choices.task} or its surface has changed since {row['id']} was begun: begin a new study")
        store.put("study", id=row["id"], status="running")
        _carry_on(store, lab, row["id"], task, choices, strategy, report)
        return str(row["id"])


def planned_trainings(choices: Choices) -> int:
    """How many trainings a study makes, if no two bests are the same and no proposal is refused."""
    count = choices.calibration_seeds
    if choices.command == "calibrate":
        return count
    count += choices.repeats * choices.experiments + 2 * choices.confirmation_seeds
    return count + choices.meta_iterations * choices.pairs * 2 * (choices.trial_experiments + choices.fresh_seeds)


def _done(store: Store, study: str) -> int:
    """How many experiments of a study are decided already."""
    rows = store.rows(
        "SELECT count(*) AS done FROM experiment JOIN run ON run.id = experiment.run "
        "WHERE study = ? AND step = 'decided' AND NOT inherited",
        study,
    )
    return int(rows[0]["done"])


def _task(choices: Choices) -> Task:
    if shutil.which("git") is None:
        raise MachineError("git was not found: install it (Debian: apt install git); every experiment is a commit")
    return load_task(Path(choices.task), seconds=choices.seconds)


def _corpus(task: Task, report: Report) -> Corpus | None:
    """The data of a task that we score; another program brings its own."""
    if task.metric.source != "scorer":
        return None
    folder = prepare(task.data.source, task.data.vocab_size, report=lambda text: report("note", {"text": text}))
    return Corpus.open(folder)


def _strategy(choices: Choices) -> str:
    path = Path(choices.strategy) if choices.strategy else Path(inner.strategy.__file__)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"strategy {path} cannot be read: {error}") from None


def _program(task: Task) -> str:
    """The human's instructions: beside the task, or where the command was called, or our own."""
    for folder in (task.path.parent, Path.cwd(), Path(inner.strategy.__file__).parent.parent):
        path = folder / "program.md"
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    raise UserError("program.md was not found: put one beside the task, it is what the human tells the agent")


def _machine() -> dict[str, Any]:
    packages = ("torch", "langgraph", "duckdb", "numpy")
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        **{name: metadata.version(name) for name in packages},
    }


def _carry_on(store: Store, lab: Path, study: str, task: Task, choices: Choices, strategy: str, report: Report) -> None:
    """Does what of a study is not done yet, and writes how it ended."""
    status = "failed"
    try:
        with (
            LocalExecutor(task, choices.slots) as executor,
            SqliteSaver.from_conn_string(str(lab / "checkpoints.sqlite")) as checkpoints,
            _stopping(executor),
        ):
            model, corpus = load_model(choices.model), _corpus(task, report)
            bench = Bench(store, lab, study, task, corpus, executor, model, _program(task), report)
            store.put("study", id=study, tier=executor.tier)
            report(
                "study",
                {
                    "study": study,
                    "command": choices.command,
                    "task": task.name,
                    "slots": executor.slots,
                    "tier": executor.tier,
                    "direction": task.metric.direction,
                    "trainings": planned_trainings(choices),
                    "done": _done(store, study),
                    "model": model.name,
                    "stand_in": model.stand_in,
                },
            )
            _Study(bench, choices, strategy, checkpoints).make()
        status = "done"
    except (Stopped, KeyboardInterrupt):
        status = "stopped"
        raise
    finally:
        store.put("study", id=study, status=status, finished=now() if status == "done" else None)
        if status != "done":
            for run in store.rows("SELECT id FROM run WHERE study = ? AND status = 'running'", study):
                store.put("run", id=run["id"], status=status)
        store.publish(force=True)


@contextmanager
def _stopping(executor: LocalExecutor) -> Iterator[None]:
    """Turns the first Ctrl-C (or SIGTERM) into a clean stop of what runs; a second one interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        executor.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Study:
    """The parts of a study, in their order."""

    def __init__(self, bench: Bench, choices: Choices, strategy: str, checkpoints: SqliteSaver) -> None:
        self.bench, self.choices, self.strategy, self.checkpoints = bench, choices, strategy, checkpoints
        self.study, self.report = bench.study, bench.report

    def make(self) -> None:
        """Makes all of it."""
        self._calibrate()
        if self.choices.command == "calibrate":
            return
        frozen = self._level_one()
        if self.choices.meta_iterations:
            frozen = self._level_two(frozen)
        self._confirm(frozen)
        self._draw()

    def _seed(self, *names: str | int) -> int:
        return derive_seed(self.choices.seed, *names)

    def _calibrate(self) -> None:
        """The noise floor: the unchanged surface on seeds of its own."""
        count = self.choices.calibration_seeds
        self.report("stage", {"title": f"Noise floor: the unchanged {self.bench.task.surface_name} on {count} seeds"})
        surface = self.bench.task.surface
        samples = [Sample("baseline", surface, self._seed("calibrate", i)) for i in range(count)]
        rows = measure(self.bench, f"{self.study}.noise", "calibrate", samples)
        scores = [row["score"] for row in rows if row["score"] is not None]
        if len(scores) < 2:
            failed = next(row for row in rows if row["score"] is None)
            raise TaskError(
                f"the unchanged surface gives no score ({failed['status']}: {failed['detail']}): "
                f"mend it, or the limits in {self.bench.task.path}"
            )
        noise = noise_floor(scores)
        self.bench.store.put("study", id=self.study, noise=noise.sd, noise_n=noise.n)
        self.report("noise", {"sd": noise.sd, "low": noise.low, "high": noise.high, "n": noise.n, "mean": noise.mean})

    def _level_one(self) -> str:
        """Runs of the strategy from the baseline, side by side; gives the one with the best score."""
        count, length = self.choices.repeats, self.choices.experiments
        side = f", {count} runs side by side" if count > 1 else ""
        self.report("stage", {"title": f"Level 1: {length} experiments{side}"})
        origin = "user" if self.choices.strategy else "seed"
        put_strategy(self.bench.store, self.strategy, origin, [])
        plans = [
            Plan(f"{self.study}.r{i + 1}", "level1", self._seed("run", i), length, self.strategy) for i in range(count)
        ]
        with ThreadPoolExecutor(self.bench.executor.slots) as pool:
            histories = list(pool.map(lambda plan: run_inner(self.bench, plan, self.checkpoints), plans))
        gains = [history.gain(history.best.score, histories[0].baseline.score) for history in histories]
        return plans[gains.index(max(gains))].run

    def _level_two(self, frozen: str) -> str:
        """The outer loop from a frozen run; gives the run that it ends at."""
        trials = Trials(
            seed=self._seed("trials"),
            pairs=self.choices.pairs,
            experiments=self.choices.trial_experiments,
            fresh_seeds=self.choices.fresh_seeds,
            confidence=self.choices.confidence,
        )
        search = StrategySearch(self.bench, trials, self.strategy, frozen, CatalogueResearcher(), self.checkpoints)
        run_outer(search, f"{self.study}.outer", self.choices.meta_iterations, self.checkpoints)
        return search.frozen(self.choices.meta_iterations)

    def _confirm(self, run: str) -> None:
        """Baseline and best, measured again on seeds and on a split that nothing was chosen by."""
        bench, count = self.bench, self.choices.confirmation_seeds
        self.report("stage", {"title": f"Confirmation: baseline and best on {count} fresh seeds and the sealed split"})
        history = history_of(bench.store, run, bench.noise, bench.task.metric.direction)
        best = bench.store.rows("SELECT surface FROM experiment WHERE run = ? AND index = ?", run, history.best.index)[
            0
        ]["surface"]
        surfaces = {"baseline": bench.task.surface, "best": bench.store.get_text(best)}
        samples = [
            Sample(label, surface, self._seed("confirm", i))
            for i in range(count)
            for label, surface in surfaces.items()
        ]
        measure(bench, f"{self.study}.confirm", "confirm", samples, sealed=bench.task.metric.source == "scorer")
        for gain in confirmed_gain(bench.store, self.study, self.choices.confidence):
            self.report("confirmed", dataclasses.asdict(gain))

    def _draw(self) -> None:
        """The pictures of the study, beside the database."""
        store, folder = self.bench.store, self.bench.folder / "charts"
        drawn = {"running-best": charts.running_best(store, self.study)}
        if self.choices.meta_iterations:
            drawn["gains"] = charts.gains(store, self.study)
        for name, chart in drawn.items():
            path = folder / f"{self.study}-{name}.png"
            charts.save(chart, path)
            self.report("picture", {"path": str(path)})

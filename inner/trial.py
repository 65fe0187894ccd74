"""One time-boxed experiment: worker, clock, scorer. The parent owns all three.

A trial never raises for what an experiment did: that is an `Outcome` with a status and one line of detail. It raises
`Stopped` when the user stops, and `TrialError` when our own machinery fails.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inner.corpus import Corpus
from inner.history import CurvePoint
from inner.memory import Shared, training_tokens
from inner.sandbox import Tier, spawn
from inner.scorer import Probe, Scorer, Tokens
from inner.task import Budget, Scoring, Task
from inner.watch import Over, Talker, Watched
from traces.errors import TrialError

Result = Literal["scored", "crash", "timeout", "invalid", "pruned"]
Prune = Callable[[tuple[CurvePoint, ...]], bool]

WALL_FOR_CPU = 8.0
"""On the cpu clock a worker may take this many times its budget of wall time: a crowded machine, not a sleeping one."""

_WARM_SECONDS = 300.0
"""Of wall time, for the interpreter and torch: nothing of an experiment's."""

_MOST_POINTS = 20_000


@dataclass(frozen=True)
class Job:
    """One experiment to run.

    Attributes:
        corpus: `None` only where the metric is not the scorer's.
        surface: the text to import and train.
        seed: of the training.
        splits: which splits to score, the first one for the metric.
    """

    task: Task
    corpus: Corpus | None
    surface: str
    seed: int
    splits: tuple[str, ...] = ("validation",)


@dataclass(frozen=True)
class Outcome:
    """What an experiment gave. Seconds are wall time, but `train_seconds`, which is on the budget's clock.

    Attributes:
        score: bits per byte of the first split, `None` unless `status` is `scored`.
        sealed_score: of the sealed split, if it was asked for.
        detail: one line: why there is no score.
        log: the tail of what the experiment printed. Model-written text: quote it as data.
    """

    status: Result
    score: float | None = None
    sealed_score: float | None = None
    detail: str = ""
    log: str = ""
    curve: tuple[CurvePoint, ...] = ()
    probes: tuple[Probe, ...] = ()
    steps: int | None = None
    tokens: int | None = None
    peak_memory: int | None = None
    device: str = "cpu"
    startup_seconds: float = 0.0
    train_seconds: float = 0.0
    training_wall_seconds: float = 0.0
    score_seconds: float = 0.0
    wall_seconds: float = 0.0


class Worker(Talker):
    """A worker in its sandbox, started ahead of its turn."""

    def __init__(
        self, tier: Tier, task: Task, stop: threading.Event, variables: Mapping[str, str] | None = None
    ) -> None:
        """Starts it; `variables` are of its environment. Raises `TrialError` if no process can be started."""
        budget = task.budget
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                confined = spawn(
                    ["-P", "-s", str(_WORKER), str(theirs.fileno()), str(budget.threads), budget.device],
                    tier=tier,
                    readonly=[_WORKER],
                    descriptors=[theirs.fileno()],
                    scratch_mib=budget.scratch_mib,
                    threads=budget.threads,
                    gpu=budget.device == "cuda",
                    variables=variables,
                    forks=budget.clock != "cpu",
                )
        except OSError as error:
            ours.close()
            raise TrialError(f"a worker did not start: {error}") from None
        super().__init__(confined, ours, budget.memory_gib, stop)


class Stopwatch:
    """An experiment's time on the clock of its budget, read from outside."""

    def __init__(self, budget: Budget, watched: Watched) -> None:
        """Starts it."""
        self._cpu = budget.clock == "cpu"
        self._confined = watched.confined
        self._before = self._confined.usage()[0]
        self._began = time.monotonic()
        self.limit = budget.seconds + budget.grace_seconds
        wall = self.limit * (WALL_FOR_CPU if self._cpu else 1.0)
        self.deadline = self._began + wall
        self.late = (
            f"took {wall:g} s of wall time for a cpu budget of {budget.seconds:g} s"
            if self._cpu
            else f"was still running after {self.limit:g} s (budget.seconds and its grace)"
        )

    def check(self, processor_seconds: float) -> None:
        """Raises `Over` if the processor seconds are more than the budget and its grace."""
        if self._cpu and processor_seconds - self._before > self.limit:
            raise Over("timeout", f"was still running after {self.limit:g} cpu s (budget.seconds and its grace)")

    def read(self) -> tuple[float, float]:
        """Seconds on the clock of the budget, and of wall time."""
        wall = time.monotonic() - self._began
        return (self._confined.usage()[0] - self._before if self._cpu else wall), wall


def run_trial(job: Job, worker: Worker, prune: Prune | None = None) -> Outcome:
    """Runs one experiment in `worker` and kills it.

    Args:
        job: what to run.
        worker: a fresh one; it is dead afterwards.
        prune: called as the training curve grows; true ends the experiment as `pruned`.

    Raises:
        Stopped: the user asked to stop; there is no outcome.
        CorpusError: a split is too small to score.
        TrialError: the machinery failed.
    """
    trial = _Trial(job, worker, prune)
    began = time.monotonic()
    status: Result
    try:
        for split in job.splits:
            scorer_of(job, split)
        status, detail = trial.run()
    except Over as over:
        status, detail = over.status, over.detail
    finally:
        log = worker.kill()
    ended = time.monotonic()
    found = trial.found | {"status": status, "detail": detail, "log": log, "wall_seconds": ended - began}
    if status != "scored":
        found |= {"score": None, "sealed_score": None}
    return Outcome(curve=tuple(trial.curve), peak_memory=trial.memory or worker.peak_memory or None, **found)


@dataclass
class _Trial:
    job: Job
    worker: Worker
    prune: Prune | None
    found: dict[str, Any] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)
    memory: int | None = None

    def run(self) -> tuple[Result, str]:
        """The conversation from the first word to the last."""
        self._build()
        self._train()
        began = time.monotonic()
        try:
            return self._score()
        finally:
            self.found["score_seconds"] = time.monotonic() - began

    def _build(self) -> None:
        task, budget = self.job.task, self.job.task.budget
        assert task.scoring is not None and self.job.corpus is not None
        began = time.monotonic()
        try:
            warm = self.worker.expect("warm", began + _WARM_SECONDS, f"was not there after {_WARM_SECONDS:g} s")
        except Over as over:
            # Nothing of the experiment's has run yet.
            raise TrialError(f"a worker did not start: {over.detail}") from None
        self.found["device"] = str(warm.get("device"))
        spec = {
            "vocab_size": self.job.corpus.vocab_size,
            "context": task.data.context,
            "device": budget.device,
            "seed": self.job.seed,
            "budget_seconds": budget.seconds,
            "rows": task.scoring.rows,
        }
        deadline = time.monotonic() + budget.startup_seconds
        late = f"was not ready after budget.startup_seconds = {budget.startup_seconds:g}"
        self.worker.ask({"say": "build", "name": task.surface_name, "surface": self.job.surface, "spec": spec})
        try:
            self.worker.expect("ready", deadline, late)
        finally:
            self.found["startup_seconds"] = time.monotonic() - began

    def _train(self) -> None:
        assert self.job.corpus is not None
        tokens = training_tokens(self.job.corpus)
        budget = self.job.task.budget
        clock = Stopwatch(budget, self.worker)
        try:
            self.worker.ask({"say": "data", "seconds": budget.seconds, "clock": budget.clock}, tokens)
            while (said := self.worker.listen(clock.deadline, clock.late, clock.check)).get("say") == "point":
                self._point(said)
        finally:
            self.found["train_seconds"], self.found["training_wall_seconds"] = clock.read()
        if said.get("say") != "trained":
            raise Over("crash", f"the worker said {said.get('say')!r:.80} instead of 'trained'")
        if self.found["train_seconds"] > clock.limit:
            spent = self.found["train_seconds"]
            raise Over("timeout", f"trained for {spent:.2f} s, the limit was {clock.limit:g} s with the grace")
        self.found |= {"steps": _count(said.get("steps")), "tokens": _count(said.get("tokens"))}
        self.memory = _count(said.get("device_memory"))

    def _point(self, said: dict[str, Any]) -> None:
        try:
            point = CurvePoint(int(said["step"]), float(said["progress"]), float(said["loss"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Over("crash", "the worker reported a point that is not one") from None
        if not 0 <= point.step < 2**31:
            raise Over("crash", f"reported step {point.step!r:.80}")
        if len(self.curve) >= _MOST_POINTS:
            raise Over("crash", f"reported more than {_MOST_POINTS} points")
        self.curve.append(point)
        if self.prune is not None and self.prune(tuple(self.curve)):
            raise Over("pruned", f"stopped by the strategy at {point.progress:.0%} of the budget")

    def _score(self) -> tuple[Result, str]:
        budget = self.job.task.budget
        scorers = {split: scorer_of(self.job, split) for split in self.job.splits}
        shape = scorers[self.job.splits[0]].shape
        deadline = time.monotonic() + budget.scoring_seconds
        late = f"had not answered the scorer after budget.scoring_seconds = {budget.scoring_seconds:g}"
        with Shared(4 * shape[0] * shape[1]) as asked, Shared(4 * shape[0] * shape[1] * shape[2]) as answer:
            questions = asked.array(np.int32, shape[:2])
            answers = answer.array(np.float32, shape)
            order = {"rows": shape[0], "context": shape[1], "vocab_size": shape[2]}
            spent: list[float] = []

            def exchange(block: Tokens) -> Any:
                questions[:] = block
                clock = Stopwatch(budget, self.worker)
                if spent:
                    self.worker.ask({"say": "next"})
                else:
                    self.worker.ask({"say": "score", **order}, asked.descriptor, answer.descriptor)
                self.worker.expect("logits", deadline, late)
                spent.append(clock.read()[0])
                return answers

            probes: list[Probe] = []
            for split, scorer in scorers.items():
                score = scorer.score(exchange)
                probes += score.probes
                self.found["probes"] = tuple(probes)
                if (failed := score.failed) is not None:
                    detail = f"{failed.what}: {failed.measured:.4g} is over the tolerance of {failed.tolerance:g}"
                    return "invalid", detail
                self.found["sealed_score" if split == "sealed" else "score"] = score.bits_per_byte
            # Who goes on training in the first answer answers all of them alike, and late once.
            more = spent[0] - max(spent[1:])
            if self.found["train_seconds"] + more > budget.seconds + budget.grace_seconds:
                raise Over("timeout", f"went on training: its first answer took {more:.2f} s more than any other")
        return "scored", ""


def _count(value: Any) -> int | None:
    """A number that the worker claims, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


_scorers = threading.Lock()


@cache
def _scorer(folder: Path, digest: str, split: str, tokens: int, rows: int, tolerance: float, context: int) -> Scorer:
    return Scorer(Corpus.open(folder), split, Scoring(tokens=tokens, rows=rows, tolerance=tolerance), context)


def scorer_of(job: Job, split: str) -> Scorer:
    """The scorer of a job's split; made once. Raises `CorpusError` if the split is too small."""
    scoring, corpus = job.task.scoring, job.corpus
    assert scoring is not None and corpus is not None
    with _scorers:
        return _scorer(
            corpus.folder, corpus.hash, split, scoring.tokens, scoring.rows, scoring.tolerance,
            job.task.data.context,
        )  # fmt: skip


_WORKER = Path(__file__).with_name("worker.py").resolve()

"""One time-boxed experiment: worker, clock, scorer. The parent owns all three.

A trial never raises for what an experiment did: that is an `Outcome` with a status and one line of detail. It raises
`Stopped` when the user stops, and `TrialError` when our own machinery fails.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inner.corpus import Corpus
from inner.history import CurvePoint
from inner.sandbox import Confined, Tier, spawn
from inner.scorer import Probe, Scorer, Tokens
from inner.task import Scoring, Task
from inner.worker import receive, send
from traces.errors import Stopped, TrialError

Result = Literal["scored", "crash", "timeout", "invalid", "pruned"]
Prune = Callable[[tuple[CurvePoint, ...]], bool]

_TICK = 0.02
"""Seconds between two looks at the clock."""

_WALL_FOR_CPU = 8.0
"""On the cpu clock a worker may take this many times its budget of wall time: a crowded machine, not a sleeping one."""

_LOG_TAIL = 16 * 2**10
_MOST_POINTS = 20_000


@dataclass(frozen=True)
class Job:
    """One experiment to run.

    Attributes:
        surface: the text to import and train.
        seed: of the training.
        splits: which splits to score, the first one for the metric.
    """

    task: Task
    corpus: Corpus
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


class _Over(Exception):
    """The experiment is over without a score."""

    def __init__(self, status: Result, detail: str) -> None:
        self.status: Result = status
        self.detail = detail


class Worker:
    """A worker in its sandbox, started ahead of its turn."""

    def __init__(self, tier: Tier, task: Task, stop: threading.Event) -> None:
        ours, theirs = socket.socketpair()
        budget = task.budget
        arguments = ["-I", str(_WORKER), str(theirs.fileno()), str(budget.threads), budget.device]
        with theirs:
            self.confined: Confined = spawn(
                arguments,
                tier=tier,
                readonly=[_WORKER],
                descriptors=[theirs.fileno()],
                scratch_mib=budget.scratch_mib,
                threads=budget.threads,
                gpu=budget.device == "cuda",
            )
        self.channel = ours
        self.channel.settimeout(5.0)
        self.output = self.confined.process.stdout
        assert self.output is not None
        os.set_blocking(self.output.fileno(), False)
        self.log = bytearray()
        self.peak_memory = 0
        self._memory_limit = int(budget.memory_gib * 2**30)
        self._stop = stop

    def ask(self, message: dict[str, Any], *descriptors: int) -> None:
        """Sends a message. Raises `_Over` if the worker is gone."""
        try:
            send(self.channel, message, descriptors)
        except OSError:
            raise self._gone() from None

    def listen(self, deadline: float, late: str, check: Callable[[float], None] | None = None) -> dict[str, Any]:
        """The worker's next message.

        Args:
            deadline: of `time.monotonic()`.
            late: what the experiment failed to do, if it passes.
            check: called at every tick with the processor seconds used; raises `_Over` to end the experiment.
        """
        while True:
            if self._stop.is_set():
                raise Stopped("stopped")
            watched: list[Any] = [self.channel] if self.output is None else [self.channel, self.output]
            ready, _, _ = select.select(watched, [], [], _TICK)
            if self.output in ready:
                self._drain()
            if self.channel in ready:
                try:
                    message, descriptors = receive(self.channel)
                except (EOFError, OSError):
                    raise self._gone() from None
                except ValueError as error:
                    raise _Over("crash", f"the worker broke the protocol: {error}") from None
                for descriptor in descriptors:
                    os.close(descriptor)
                return message
            seconds, memory = self.confined.usage()
            self.peak_memory = max(self.peak_memory, memory)
            if memory > self._memory_limit:
                raise _Over("crash", f"used {memory / 2**30:.1f} GiB of memory, the limit is budget.memory_gib")
            if time.monotonic() > deadline:
                raise _Over("timeout", late)
            if check is not None:
                check(seconds)

    def expect(self, word: str, deadline: float, late: str) -> dict[str, Any]:
        """The next message, which must be `word`."""
        message = self.listen(deadline, late)
        if message.get("say") != word:
            raise _Over("crash", f"the worker said {message.get('say')!r} instead of {word!r}")
        return message

    def kill(self) -> str:
        """Ends the worker and all that it started; gives the tail of what it printed."""
        self._drain()
        self.confined.kill()
        self.channel.close()
        return self.log.decode("utf-8", "replace")

    def _gone(self) -> _Over:
        try:
            self.confined.process.wait(timeout=2)
        except Exception:  # still closing its namespaces: killed below all the same
            self.confined.process.kill()
        self._drain()
        lines = [line for line in self.log.decode("utf-8", "replace").splitlines() if line.strip()]
        return _Over("crash", lines[-1].strip()[:300] if lines else f"died ({self.confined.process.returncode})")

    def _drain(self) -> None:
        if self.output is None:
            return
        try:
            # Bounded: an experiment that prints without end must not hold up the clock.
            for _ in range(64):
                part = os.read(self.output.fileno(), 2**16)
                if not part:
                    self.output = None
                    return
                self.log += part
                del self.log[:-_LOG_TAIL]
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self.output = None


def run_trial(job: Job, worker: Worker, prune: Prune | None = None) -> Outcome:
    """Runs one experiment in `worker` and kills it.

    Args:
        job: what to run.
        worker: a fresh one; it is dead afterwards.
        prune: called as the training curve grows; true ends the experiment as `pruned`.

    Raises:
        Stopped: the user asked to stop; there is no outcome.
        TrialError: the machinery failed.
    """
    trial = _Trial(job, worker, prune)
    began = time.monotonic()
    try:
        status, detail = trial.run()
    except _Over as over:
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
        began = time.monotonic()
        deadline = began + budget.startup_seconds
        late = f"was not ready after budget.startup_seconds = {budget.startup_seconds:g}"
        try:
            self.found["device"] = str(self.worker.expect("warm", deadline, late).get("device"))
        except _Over as over:
            # Nothing of the experiment's has run yet.
            raise TrialError(f"a worker did not start: {over.detail}") from None
        spec = {
            "vocab_size": self.job.corpus.vocab_size,
            "context": task.data.context,
            "device": budget.device,
            "seed": self.job.seed,
            "budget_seconds": budget.seconds,
            "rows": task.scoring.rows,
        }
        self.worker.ask({"say": "build", "name": task.surface_name, "surface": self.job.surface, "spec": spec})
        try:
            self.worker.expect("ready", deadline, late)
        finally:
            self.found["startup_seconds"] = time.monotonic() - began

    def _train(self) -> None:
        budget = self.job.task.budget
        cpu = budget.clock == "cpu"
        limit = budget.seconds + budget.grace_seconds
        self._cpu_before, _ = self.worker.confined.usage()
        self._began = time.monotonic()
        late = f"was still training after {limit:g} s ({budget.seconds:g} s and the grace)"
        deadline = self._began + limit * (_WALL_FOR_CPU if cpu else 1.0)
        if cpu:
            late = f"took {limit * _WALL_FOR_CPU:g} s of wall time for a cpu budget of {budget.seconds:g} s"

        def check(processor_seconds: float) -> None:
            if cpu and processor_seconds - self._cpu_before > limit:
                raise _Over("timeout", f"was still training after {limit:g} cpu s")

        message = {"say": "data", "seconds": budget.seconds, "clock": budget.clock}
        self.worker.ask(message, training_tokens(self.job.corpus))
        try:
            while (said := self.worker.listen(deadline, late, check)).get("say") == "point":
                self._point(said)
        finally:
            spent = self.worker.confined.usage()[0] - self._cpu_before
            wall = time.monotonic() - self._began
            self.found["training_wall_seconds"] = wall
            self.found["train_seconds"] = spent if cpu else wall
        if said.get("say") != "trained":
            raise _Over("crash", f"the worker said {said.get('say')!r} instead of 'trained'")
        if self.found["train_seconds"] > limit:
            raise _Over("timeout", f"trained for {self.found['train_seconds']:.2f} s, the limit was {limit:g} s")
        self.found |= {"steps": _count(said.get("steps")), "tokens": _count(said.get("tokens"))}
        self.memory = _count(said.get("device_memory"))

    def _point(self, said: dict[str, Any]) -> None:
        try:
            point = CurvePoint(int(said["step"]), float(said["progress"]), float(said["loss"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _Over("crash", "the worker reported a point that is not one") from None
        if len(self.curve) >= _MOST_POINTS:
            raise _Over("crash", f"reported more than {_MOST_POINTS} points")
        self.curve.append(point)
        if self.prune is not None and self.prune(tuple(self.curve)):
            raise _Over("pruned", f"stopped by the strategy at {point.progress:.0%} of the budget")

    def _score(self) -> tuple[Result, str]:
        task = self.job.task
        deadline = time.monotonic() + task.budget.scoring_seconds
        late = f"had not answered the scorer after budget.scoring_seconds = {task.budget.scoring_seconds:g}"
        shape = scorer_of(self.job, "validation").shape
        with _Shared(4 * shape[0] * shape[1]) as asked, _Shared(4 * shape[0] * shape[1] * shape[2]) as answer:
            questions = asked.array(np.int32, shape[:2])
            answers = answer.array(np.float32, shape)
            order = {"rows": shape[0], "context": shape[1], "vocab_size": shape[2]}
            first = True

            def exchange(block: Tokens) -> Any:
                nonlocal first
                questions[:] = block
                if first:
                    self.worker.ask({"say": "score", **order}, asked.descriptor, answer.descriptor)
                else:
                    self.worker.ask({"say": "next"})
                first = False
                self.worker.expect("logits", deadline, late)
                return answers

            probes: list[Probe] = []
            for split in self.job.splits:
                score = scorer_of(self.job, split).score(exchange)
                probes += score.probes
                self.found["probes"] = tuple(probes)
                if (failed := score.failed) is not None:
                    detail = f"{failed.what}: {failed.measured:.4g} is over the tolerance of {failed.tolerance:g}"
                    return "invalid", detail
                self.found["sealed_score" if split == "sealed" else "score"] = score.bits_per_byte
        return "scored", ""


def _count(value: Any) -> int | None:
    """A number that the worker claims, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


class _Shared:
    """Anonymous shared memory of a fixed size: sealed, so that a worker cannot shrink it under us."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("bilevel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.memory = mmap.mmap(self.descriptor, size)

    def array(self, kind: type[Any], shape: tuple[int, ...]) -> Any:
        return np.frombuffer(self.memory, dtype=kind, count=int(np.prod(shape))).reshape(shape)

    def __enter__(self) -> _Shared:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


_lock = threading.Lock()


@cache
def _sealed_copy(path: Path, digest: str) -> int:
    """A descriptor of a copy in memory that nobody can write to, by whatever path it is opened again."""
    descriptor = os.memfd_create("tokens", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(path, "rb") as source:
        while part := source.read(2**24):
            os.write(descriptor, part)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def training_tokens(corpus: Corpus) -> int:
    """The descriptor of the training tokens that workers get; made once a corpus."""
    with _lock:
        return _sealed_copy(corpus.folder / "train.bin", corpus.hash)


@cache
def _scorer(folder: Path, digest: str, split: str, tokens: int, rows: int, tolerance: float, context: int) -> Scorer:
    return Scorer(Corpus.open(folder), split, Scoring(tokens=tokens, rows=rows, tolerance=tolerance), context)


def scorer_of(job: Job, split: str) -> Scorer:
    """The scorer of a job's split; made once. Raises `CorpusError` if the split is too small."""
    scoring = job.task.scoring
    with _lock:
        return _scorer(
            job.corpus.folder, job.corpus.hash, split, scoring.tokens, scoring.rows, scoring.tolerance,
            job.task.data.context,
        )  # fmt: skip


_WORKER = Path(__file__).with_name("worker.py").resolve()

"""Where experiments run: this machine, one experiment to a core or a GPU.

Importing torch takes longer than many an experiment's overhead may, so the next workers are started, each in a sandbox
of its own, while the current ones train. A worker serves one experiment and is never used again.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from inner.program import run_program
from inner.sandbox import Tier
from inner.sandbox import tier as best_tier
from inner.task import Task
from inner.trial import Job, Outcome, Prune, Worker, run_trial
from traces.errors import MachineError, Stopped, TrialError


class Executor(Protocol):
    """Runs experiments, several at a time. Safe to call from many threads.

    Attributes:
        slots: how many experiments run at once.
        tier: the confinement in force.
    """

    slots: int
    tier: Tier

    def run(self, job: Job, prune: Prune | None = None) -> Outcome:
        """Waits for a free slot and runs one experiment in it. Raises as `inner.trial.run_trial`."""

    def stop(self) -> None:
        """Ends the experiments that run, which raise `Stopped`. Returns at once."""


class LocalExecutor:
    """Experiments on this machine, for one task. As a context, it leaves no process behind."""

    def __init__(self, task: Task, slots: int | None = None, tier: Tier | None = None) -> None:
        """Sets up without starting anything.

        Args:
            task: what the workers are started for.
            slots: experiments at a time; by default one to a core (or `budget.threads` cores) or to a GPU.
            tier: the confinement; by default the strongest that works here.

        Raises:
            MachineError: the task needs a GPU and there is none, or processor seconds cannot be counted here.
        """
        self.task = task
        most = default_slots(task)
        self.slots = slots or most
        self.tier: Tier = tier or best_tier()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._free: queue.Queue[int] = queue.Queue()
        for slot in range(self.slots):
            self._free.put(slot)
        self._warm: dict[int, Worker] = {}
        gpus = visible_gpus(most) if task.budget.device == "cuda" else []
        self._variables = [{"CUDA_VISIBLE_DEVICES": gpus[slot % most]} if gpus else {} for slot in range(self.slots)]

    def run(self, job: Job, prune: Prune | None = None) -> Outcome:
        """Waits for a free slot and runs one experiment in it."""
        slot = self._wait()
        try:
            try:
                return self._run(slot, job, prune)
            except TrialError:
                # A fault of the machine is not a result: once more, with another worker.
                return self._run(slot, job, prune)
        finally:
            self._free.put(slot)

    def _wait(self) -> int:
        while not self._stop.is_set():
            with suppress(queue.Empty):
                return self._free.get(timeout=0.1)
        raise Stopped("stopped")

    def _run(self, slot: int, job: Job, prune: Prune | None) -> Outcome:
        if job.task.metric.source == "scorer":
            return run_trial(job, self._take(slot), prune)
        return run_program(job, self.tier, self._stop, self._variables[slot])

    def _take(self, slot: int) -> Worker:
        """The slot's worker, and the next one on its way."""
        with self._lock:
            if self._stop.is_set():
                raise Stopped("stopped")
            worker = self._warm.pop(slot, None) or self._start(slot)
            try:
                self._warm[slot] = self._start(slot)
            except BaseException:
                worker.kill()
                raise
            return worker

    def _start(self, slot: int) -> Worker:
        return Worker(self.tier, self.task, self._stop, self._variables[slot])

    def stop(self) -> None:
        """Ends the experiments that run, which raise `Stopped`."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        with self._lock:
            while self._warm:
                self._warm.popitem()[1].kill()
        for _slot in range(self.slots):
            self._free.get()


def default_slots(task: Task) -> int:
    """How many experiments of `task` fit on this machine at once.

    Raises:
        MachineError: the task needs a GPU and there is none, or processor seconds cannot be counted here.
    """
    if task.budget.clock == "cpu" and not Path("/proc/thread-self/children").exists():
        raise MachineError(
            f'{task.path} counts processor seconds (budget.clock = "cpu"), and this kernel does not list the children '
            'of a process: use budget.clock = "wall"'
        )
    if task.budget.device == "cpu":
        return max(1, len(os.sched_getaffinity(0)) // task.budget.threads)
    import torch

    if not torch.cuda.is_available():
        raise MachineError(
            f'{task.path} needs a GPU (budget.device = "cuda") and torch {torch.__version__} sees none: '
            "use --task benchmarks/gpt/mini.toml, or see `bilevel doctor`"
        )
    return torch.cuda.device_count()


def visible_gpus(count: int) -> list[str]:
    """The names of the first `count` GPUs that this process may use, each fit for CUDA_VISIBLE_DEVICES."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(index) for index in range(count)])[:count]

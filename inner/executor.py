"""Where experiments run: this machine, one experiment to a core or a GPU.

Importing torch takes longer than many an experiment's overhead may, so the next workers are started, each in a sandbox
of its own, while the current ones train. A worker serves one experiment and is never used again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from types import TracebackType
from typing import Protocol

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
    """Experiments on this machine, for one task."""

    def __init__(self, task: Task, slots: int | None = None, tier: Tier | None = None) -> None:
        """Sets up without starting anything.

        Args:
            task: what the workers are started for.
            slots: experiments at a time; by default one to a core (or `budget.threads` cores) or to a GPU.
            tier: the confinement; by default the strongest that works here.

        Raises:
            MachineError: the task needs a GPU and there is none.
        """
        self.task = task
        self.slots = slots or default_slots(task)
        self.tier: Tier = tier or best_tier()
        self._free = threading.BoundedSemaphore(self.slots)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._warm: deque[Worker] = deque()

    def run(self, job: Job, prune: Prune | None = None) -> Outcome:
        """Waits for a free slot and runs one experiment in it."""
        while not self._free.acquire(timeout=0.1):
            if self._stop.is_set():
                raise Stopped("stopped")
        try:
            try:
                return run_trial(job, self._take(), prune)
            except TrialError:
                # A fault of the machine is not a result: once more, with another worker.
                return run_trial(job, self._take(), prune)
        finally:
            self._free.release()

    def _take(self) -> Worker:
        """A worker, and as many as there are slots on their way."""
        with self._lock:
            if self._stop.is_set():
                raise Stopped("stopped")
            while len(self._warm) <= self.slots:
                self._warm.append(Worker(self.tier, self.task, self._stop))
            return self._warm.popleft()

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
                self._warm.popleft().kill()


def default_slots(task: Task) -> int:
    """How many experiments of `task` fit on this machine at once.

    Raises:
        MachineError: the task needs a GPU and there is none.
    """
    if task.budget.device == "cpu":
        return max(1, len(os.sched_getaffinity(0)) // task.budget.threads)
    import torch

    if not torch.cuda.is_available():
        raise MachineError(
            f'{task.path} needs a GPU (budget.device = "cuda") and torch {torch.__version__} sees none: '
            "use --task benchmarks/gpt/mini.toml, or see `bilevel doctor`"
        )
    return torch.cuda.device_count()

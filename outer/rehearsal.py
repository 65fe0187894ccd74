"""What a strategy is rehearsed with: a model that costs nothing, and a history in which everything fails."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from inner.history import Change, Experiment, History, Proposal, Request, Status, TaskView, moves_between
from inner.prior import Prior
from inner.questions import MOST_QUESTIONS
from traces.errors import StrategyError

_FAILURES: tuple[Status, ...] = ("crash", "timeout", "invalid", "pruned", "refused")


@dataclass
class Rehearsal:
    """The stand-in for a language model, as it answers the questions before one experiment.

    The same questions on the same history get the same answers. Other guidance gets others, although the stand-in
    understands none: a strategy that guides its model must not look as if it did nothing.

    Attributes:
        silent: whether it has no idea, ever.
        asked: how often it was asked.
    """

    task: TaskView
    history: History
    silent: bool = False
    asked: int = 0

    def __call__(self, request: Request) -> tuple[Proposal, ...]:
        """Its ideas. Raises `StrategyError` if it is asked too often."""
        self.asked += 1
        if self.asked > MOST_QUESTIONS:
            raise StrategyError(f"asked the language model more than {MOST_QUESTIONS} times")
        rng = random.Random(f"{len(self.history)}:{self.asked}:{request.guidance}")
        return () if self.silent else Prior().ask(request, self.history, self.task, rng).proposals


def only_failures(task: TaskView, begun: History) -> History:
    """A history that has only begun, and after it nothing but failures, one of each kind."""
    baseline, history = begun.baseline, begun
    for index, status in enumerate(_FAILURES, 1):
        # A refused change never reached the surface.
        ideas = () if status == "refused" else Rehearsal(task, history)(Request())
        change = ideas[0].change if ideas else Change()
        constants = dict(baseline.constants) | dict(change.constants)
        moves = moves_between(task.constants, baseline.constants, constants)
        failure = Experiment(index, baseline.index, change, "", constants, moves, status, None, 0.0)
        history = replace(history, experiments=(*history.experiments, failure))
    return history

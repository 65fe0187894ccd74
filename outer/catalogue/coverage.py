"""Coverage: the constants that were tried least come first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from inner.history import History, Request, TaskView


class Coverage:
    """After an experiment that was not kept, lets the model change only the constants that were tried least.

    After a keep the model is free to follow it up: exploring stops where there is something to exploit.
    """

    def __init__(self, task: TaskView) -> None:
        self.task = task

    def shape(self, history: History, request: Request) -> Request:
        """Narrows the request to the least tried constants."""
        if history[-1].kept:
            return request
        tries = Counter(move.constant for experiment in history for move in experiment.moves)
        fewest = min(tries[name] for name in self.task.constants)
        least = tuple(name for name in self.task.constants if tries[name] == fewest)
        return replace(request, constants=least)

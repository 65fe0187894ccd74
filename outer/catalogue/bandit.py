"""Bandit over constants: attention goes to the constants that have paid."""

from __future__ import annotations

import random
from dataclasses import replace

from inner.history import Experiment, History, Request, TaskView


class Bandit:
    """Treats each constant as an arm, and lets the model change only the arms that look best.

    An experiment rewards the constants it changed if it gained more than twice the noise floor over its parent, and
    counts against them otherwise. What an arm may pay is drawn from its Beta posterior (Thompson sampling): arms that
    are seldom tried are drawn high often enough to be tried again.
    """

    arms = 3  # constants that the model may choose from

    def __init__(self, task: TaskView, rng: random.Random) -> None:
        self.task = task
        self.rng = rng

    def paid(self, history: History, experiment: Experiment) -> bool:
        """Whether the experiment gained more over its parent than noise would."""
        parent = next((e for e in history if e.index == experiment.parent), None)
        return parent is not None and history.gain(experiment.score, parent.score) > 2 * (history.noise or 0.0)

    def shape(self, history: History, request: Request) -> Request:
        """Narrows the request to the constants with the highest draws, best first."""
        draws: dict[str, float] = {}
        for name in self.task.constants:
            results = [self.paid(history, experiment) for experiment in history.moves_of(name)]
            draws[name] = self.rng.betavariate(1 + sum(results), 1 + len(results) - sum(results))
        best = sorted(draws, key=lambda name: -draws[name])[: self.arms]
        return replace(request, constants=tuple(best))

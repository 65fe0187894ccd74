"""Annealed acceptance: early on, a small loss is a price worth paying."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from inner.history import Experiment, History, Proposal, Request, TaskView


class Annealing:
    """Keeps some experiments that are worse, and goes on from there: the search can leave a local best.

    A loss is kept with probability exp(-loss / temperature). The temperature is counted in noise floors and falls
    to 0 in proportion to the experiments left; where no noise floor was measured it is 0, and the search greedy.
    """

    start = 2.0  # temperature of the first experiment, in noise floors

    def __init__(self, task: TaskView, rng: random.Random) -> None:
        self.task = task
        self.rng = rng

    def base(self, history: History) -> Experiment:
        """Where the search stands: at the last keep, which need not be the best."""
        return history.current

    def shape(self, history: History, request: Request) -> Request:
        """Has the model change the surface where the search stands."""
        return replace(request, parent=self.parent(history))

    def place(self, history: History, proposal: Proposal) -> Proposal:
        """Carries a proposal out where the search stands."""
        return replace(proposal, parent=self.parent(history))

    def parent(self, history: History) -> int | None:
        """The experiment to branch from; `None` is the best, as it is without this mechanism."""
        base = self.base(history)
        return None if base.index == history.best.index else base.index

    def temperature(self, history: History) -> float:
        """In units of the metric."""
        left = max(0.0, 1 - len(history) / self.task.experiments)
        return self.start * (history.noise or 0.0) * left

    def accept(self, history: History, candidate: Experiment) -> bool:
        """The rule of Metropolis."""
        gain = history.gain(candidate.score, self.base(history).score)
        temperature = self.temperature(history)
        if gain > 0 or math.isnan(gain) or temperature == 0:
            return gain > 0
        return self.rng.random() < math.exp(gain / temperature)

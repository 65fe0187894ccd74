"""Novelty: of several ideas, the one least like anything run so far."""

from __future__ import annotations

from inner.history import Experiment, History, Proposal, TaskView, moves_between
from outer.catalogue.common import size_of


class Novelty:
    """Asks the model for several ideas and takes the one farthest from every experiment so far.

    A model's first idea is its favourite; what it has not tried yet is further down its list.
    """

    def __init__(self, task: TaskView) -> None:
        self.task = task

    def choose(self, history: History, base: Experiment, ideas: tuple[Proposal, ...]) -> tuple[Proposal, ...]:
        """The ideas, the most novel first; equals stay as the model ordered them."""
        return tuple(sorted(ideas, key=lambda idea: -self.novelty(history, base, idea)))

    def novelty(self, history: History, base: Experiment, idea: Proposal) -> float:
        """Steps of the space to the nearest experiment: one for another choice, or for an edit beyond the constants."""
        if idea.change.blocks or idea.change.text is not None:
            return 1.0
        wanted = dict(base.constants) | dict(idea.change.constants)
        space = self.task.constants
        return min(
            sum(
                1.0 if move.direction == "set" else size_of(space[move.constant], move.before, move.after)
                for move in moves_between(space, experiment.constants, wanted)
            )
            for experiment in history
        )

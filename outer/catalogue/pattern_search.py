"""Pattern search: a step that paid is taken again, twice as far; a step too far is halved."""

from __future__ import annotations

from inner.history import Change, Experiment, History, Move, Proposal, TaskView
from outer.catalogue.common import size_of


class PatternSearch:
    """Follows up a keep without asking: on in the same direction with double steps, back with half steps.

    A model that has won once turns to something else, and leaves the rest of the gain lying in the same direction.
    The direction is given up when a step as small as the one that paid fails.
    """

    def __init__(self, task: TaskView) -> None:
        self.task = task

    def propose(self, history: History, base: Experiment) -> Proposal | None:
        """The next step along the direction of the last keep, or nothing where that direction is given up."""
        paid, last = self.step(base), self.step(history[-1])
        if paid is None or last is None or (paid.constant, paid.direction) != (last.constant, last.direction):
            return None
        constant = self.task.constants[paid.constant]
        size = size_of(constant, last.before, last.after) * (2.0 if history[-1].kept else 0.5)
        value = constant.step(paid.after, paid.direction, size)
        if size < size_of(constant, paid.before, paid.after) or value in history.values_of(paid.constant):
            return None
        pace = "on, twice as far" if history[-1].kept else "too far, half of it"
        return Proposal(Change({paid.constant: value}), f"{paid.constant} {paid.direction} has paid: {pace}")

    def step(self, experiment: Experiment) -> Move | None:
        """The one move of an experiment, if it made no other and the move has a direction."""
        directed = len(experiment.moves) == 1 and experiment.moves[0].direction != "set"
        return experiment.moves[0] if directed else None

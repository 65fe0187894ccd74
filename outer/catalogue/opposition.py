"""Opposite direction: a step that failed is answered by the same step the other way."""

from __future__ import annotations

from inner.history import Change, Direction, Experiment, History, Proposal, TaskView
from outer.catalogue.common import size_of


class Opposition:
    """After a step that was not kept, takes a step of the same size in the opposite direction, once.

    A model that believes in one direction never learns what lies the other way; one experiment shows it.
    """

    def __init__(self, task: TaskView) -> None:
        self.task = task

    def propose(self, history: History, base: Experiment) -> Proposal | None:
        """The opposite of the last step, if that failed, had a direction, and leads to a value not run yet."""
        last = history[-1]
        if last.kept or len(last.moves) != 1 or last.moves[0].direction == "set":
            return None
        move = last.moves[0]
        constant = self.task.constants[move.constant]
        opposite: Direction = "down" if move.direction == "up" else "up"
        value = constant.step(base.constants[move.constant], opposite, size_of(constant, move.before, move.after))
        if value in history.values_of(move.constant):
            return None
        why = f"{move.constant} {move.direction} failed (experiment {last.index}): the same step {opposite}"
        return Proposal(Change({move.constant: value}), why)

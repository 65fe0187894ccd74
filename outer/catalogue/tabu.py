"""Tabu list: what was tried lately may not be tried again."""

from __future__ import annotations

from dataclasses import replace

from inner.history import Avoid, Direction, Experiment, History, Move, Proposal, Request, TaskView, moves_between
from outer.catalogue.common import forbids


class Tabu:
    """Forbids the moves of the last experiments, so that the search leaves a place it has already looked at.

    A move that was not kept may not be repeated in its direction; a move that was kept may not be undone. Between
    choices, which have no direction, it is the value that is forbidden.
    """

    tenure = 7  # experiments that a move stays forbidden: the usual rule of thumb for short lists

    def __init__(self, task: TaskView) -> None:
        self.task = task

    def forbidden(self, history: History) -> tuple[Avoid, ...]:
        """The list as it stands, oldest first."""
        entries = [
            self.entry(move, experiment.kept) for experiment in history.last(self.tenure) for move in experiment.moves
        ]
        return tuple(dict.fromkeys(entries))

    def entry(self, move: Move, kept: bool) -> Avoid:
        """What one move forbids: its repetition, or its undoing if it was kept."""
        if move.direction == "set":
            undone = move.before if move.before is not None else move.after
            return Avoid(move.constant, value=undone if kept else move.after)
        back: Direction = "down" if move.direction == "up" else "up"
        return Avoid(move.constant, back if kept else move.direction)

    def shape(self, history: History, request: Request) -> Request:
        """Asks the model to leave the forbidden moves alone."""
        return replace(request, avoid=request.avoid + self.forbidden(history))

    def choose(self, history: History, base: Experiment, ideas: tuple[Proposal, ...]) -> tuple[Proposal, ...]:
        """Drops the ideas that make a forbidden move all the same."""
        avoid = self.forbidden(history)
        return tuple(idea for idea in ideas if not any(forbids(avoid, move) for move in self.moves(base, idea)))

    def moves(self, base: Experiment, idea: Proposal) -> tuple[Move, ...]:
        """What an idea does to the constants of `base`."""
        return moves_between(self.task.constants, base.constants, idea.change.constants)

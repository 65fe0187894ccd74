"""Recombination: two changes that nearly paid are tried together."""

from __future__ import annotations

from itertools import combinations

from inner.history import Change, Experiment, History, Proposal


class Recombination:
    """After every few failures in a row, combines the two most promising changes that were not kept.

    Each missed alone, by noise or because it needs the other; one change at a time never tries them together.
    """

    patience = 3  # failures in a row before two changes are combined

    def propose(self, history: History, base: Experiment) -> Proposal | None:
        """The best pair that has not been run, when it is time for one."""
        failures = next((n for n, experiment in enumerate(reversed(history.experiments)) if experiment.kept), 0)
        if failures == 0 or failures % self.patience:
            return None
        run = [dict(experiment.constants) for experiment in history]
        for one, other in combinations(self.promising(history, base), 2):
            pair = {move.constant: move.after for move in one.moves + other.moves}
            if dict(base.constants) | pair not in run:
                return Proposal(Change(pair), f"experiments {one.index} and {other.index} missed alone: both together")
        return None

    def promising(self, history: History, base: Experiment) -> list[Experiment]:
        """The best discarded change of each constant to a value that `base` does not have, smallest loss first."""
        scores = {experiment.index: experiment.score for experiment in history.scored}
        missed = [e for e in history.scored if not e.kept and len(e.moves) == 1 and e.parent in scores]
        missed.sort(key=lambda e: -history.gain(e.score, scores.get(e.parent or 0)))
        firsts: dict[str, Experiment] = {}
        for experiment in missed:
            move = experiment.moves[0]
            if move.after != base.constants.get(move.constant):
                firsts.setdefault(move.constant, experiment)
        return list(firsts.values())

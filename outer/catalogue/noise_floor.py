"""Acceptance by the noise floor: luck is not kept."""

from __future__ import annotations

from inner.history import Experiment, History


class NoiseFloor:
    """Keeps only what is better than the best by more than noise explains.

    Greedy acceptance on a noisy metric keeps the luckiest measurement, and everything after is compared with luck.
    Where no noise floor was measured, any gain is kept.
    """

    threshold = 2.0  # noise floors: the bound from which the record calls a keep significant

    def accept(self, history: History, candidate: Experiment) -> bool:
        """Whether the gain over the best exceeds the threshold."""
        return history.gain(candidate.score, history.best.score) > self.threshold * (history.noise or 0.0)

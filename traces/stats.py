"""Intervals and power: what a handful of noisy scores can say, and what not. By scipy; scores are taken as normal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, stats

Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True, slots=True)
class Noise:
    """How much one unchanged surface scatters over seeds.

    Attributes:
        sd: standard deviation of the scores (of a sample: n - 1).
        n: how many scores.
        low: lower end of the interval of `sd`.
        high: upper end.
        mean: of the scores.
    """

    sd: float
    n: int
    low: float
    high: float
    mean: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where the true one lies: outside `low` to `high` in a share of 1 - `confidence` of all such intervals.

    Attributes:
        n: how many observations; of the smaller sample where there are two.
    """

    mean: float
    low: float
    high: float
    confidence: float
    n: int


def noise_floor(scores: Sequence[float], confidence: float = 0.95) -> Noise:
    """The standard deviation of scores, with its chi-square interval.

    One score gives a NaN for `sd` and an interval from 0 to infinity.

    Raises:
        ValueError: no scores, or one that is not finite.
    """
    values = _checked(scores, confidence)
    n = len(values)
    if n < 2:
        return Noise(math.nan, n, 0.0, math.inf, float(values.mean()))
    sd = float(values.std(ddof=1))
    tail = (1 - confidence) / 2
    below, above = float(stats.chi2.ppf(tail, n - 1)), float(stats.chi2.ppf(1 - tail, n - 1))
    return Noise(sd, n, sd * math.sqrt((n - 1) / above), sd * math.sqrt((n - 1) / below), float(values.mean()))


def paired(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean of differences with its t interval.

    One difference gives an infinite interval; differences that are all the same, one without width.

    Raises:
        ValueError: no differences, or one that is not finite.
    """
    values = _checked(differences, confidence)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Interval(mean, -math.inf, math.inf, confidence, n)
    if (error := float(stats.sem(values))) == 0:
        return Interval(mean, mean, mean, confidence, n)
    low, high = stats.t.interval(confidence, n - 1, mean, error)
    return Interval(mean, float(low), float(high), confidence, n)


def gain(
    baseline: Sequence[float], best: Sequence[float], confidence: float = 0.95, direction: Direction = "minimize"
) -> Interval:
    """By how much the best is better than the baseline, measured on the same seeds: positive is better.

    Raises:
        ValueError: the two differ in length, are empty, or hold a score that is not finite.
    """
    if len(baseline) != len(best):
        raise ValueError(f"{len(baseline)} scores of the baseline and {len(best)} of the best: pair them by seed")
    sign = 1.0 if direction == "minimize" else -1.0
    return paired([sign * (before - after) for before, after in zip(baseline, best, strict=True)], confidence)


def unpaired_gain(
    baseline: Sequence[float], best: Sequence[float], confidence: float = 0.95, direction: Direction = "minimize"
) -> Interval:
    """As `gain`, for scores that share no seeds: the t interval of Welch, which lets the two scatter differently.

    A sample of one score gives an infinite interval; two that do not scatter at all, one without width.

    Raises:
        ValueError: either is empty, or holds a score that is not finite.
    """
    sign = 1.0 if direction == "minimize" else -1.0
    before, after = (sign * _checked(scores, confidence) for scores in (baseline, best))
    mean, n = float(before.mean() - after.mean()), min(len(before), len(after))
    if n < 2:
        return Interval(mean, -math.inf, math.inf, confidence, n)
    if before.std() == after.std() == 0:
        return Interval(mean, mean, mean, confidence, n)
    low, high = stats.ttest_ind(before, after, equal_var=False).confidence_interval(confidence)
    return Interval(mean, float(low), float(high), confidence, n)


def detectable(sd: float, n: int, confidence: float = 0.95, power: float = 0.8) -> float:
    """The smallest true mean difference that `n` pairs would have shown in a share `power` of all trials.

    That is, for which the interval of `paired` would have excluded 0 so often; from the noncentral t distribution
    (Cohen 1988, Statistical Power Analysis for the Behavioral Sciences, chapter 2).

    Args:
        sd: standard deviation of the differences, 0 gives 0.
        n: how many pairs; fewer than two show nothing, however large: infinity.
        confidence: of the interval, two-sided.
        power: between 1 - confidence and 1.
    """
    if not 0 < confidence < 1 or not 1 - confidence < power < 1:
        raise ValueError(f"power must be between 1 - confidence and 1, got power {power}, confidence {confidence}")
    if not sd >= 0:
        raise ValueError(f"a standard deviation is not negative, got {sd}")
    if n < 2:
        return math.inf
    critical = float(stats.f.ppf(confidence, 1, n - 1))

    def lacking(shift: float) -> float:
        # The square of a noncentral t is a noncentral F, which scipy computes far into its tails.
        return float(stats.ncf.sf(critical, 1, n - 1, shift**2)) - power

    upper = math.sqrt(critical) + 1.0
    while lacking(upper) < 0:
        upper *= 2
    return sd / math.sqrt(n) * float(optimize.brentq(lacking, 0.0, upper))


def _checked(values: Sequence[float], confidence: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    array = np.asarray(list(values), dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"expected finite numbers, at least one, got {list(values)}")
    return array

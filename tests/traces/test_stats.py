"""Intervals cover what they promise, and power is what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.stats import detectable, gain, noise_floor, paired, unpaired_gain

scores = st.lists(st.floats(-100, 100), min_size=2, max_size=10)
RUNS = 2000


def covered(share: float, confidence: float) -> bool:
    """Whether a share seen in RUNS trials is within four standard errors of the promised one."""
    return abs(share - confidence) < 4 * math.sqrt(confidence * (1 - confidence) / RUNS)


def test_the_noise_floor_of_a_known_sample() -> None:
    # sd of 2, 4, 4, 4, 5, 5, 7, 9 is sqrt(32 / 7); the chi-square quantiles of 7 degrees of freedom are 1.6899, 16.0128
    noise = noise_floor([2, 4, 4, 4, 5, 5, 7, 9])
    assert (noise.sd, noise.mean, noise.n) == (pytest.approx(math.sqrt(32 / 7)), 5.0, 8)
    assert (noise.low, noise.high) == (
        pytest.approx(math.sqrt(32 / 16.0128), rel=1e-4),
        pytest.approx(math.sqrt(32 / 1.6899), rel=1e-4),
    )


def test_the_paired_interval_of_a_known_sample() -> None:
    # sleep data of "Student" (1908): mean 1.58, t = 4.0621, 95 % from 0.7001 to 2.4599
    found = paired([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert (found.mean, found.low, found.high) == pytest.approx((1.58, 0.7001, 2.4599), abs=1e-4)


def test_the_unpaired_interval_of_a_known_sample() -> None:
    # the same data as two groups, Welch: 17.776 degrees of freedom, from -3.3655 to 0.2055
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = unpaired_gain(first, second)
    assert (found.mean, found.low, found.high) == pytest.approx((-1.58, -3.3655, 0.2055), abs=1e-4)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    hits = dict.fromkeys(("noise", "paired", "unpaired"), 0)
    for _ in range(RUNS):
        noise = noise_floor(rng.normal(1.1, 0.3, 4).tolist(), 0.9)
        hits["noise"] += noise.low <= 0.3 <= noise.high
        one = paired(rng.normal(0.2, 0.3, 3).tolist(), 0.9)
        hits["paired"] += one.low <= 0.2 <= one.high
        two = unpaired_gain(rng.normal(1.0, 0.3, 5).tolist(), rng.normal(0.8, 0.3, 5).tolist(), 0.9)
        hits["unpaired"] += two.low <= 0.2 <= two.high
    assert {name for name, count in hits.items() if not covered(count / RUNS, 0.9)} == set()


@pytest.mark.parametrize(("n", "confidence", "power"), [(2, 0.9, 0.8), (4, 0.95, 0.8), (12, 0.95, 0.5)])
def test_the_detectable_effect_is_seen_as_often_as_it_says(n: int, confidence: float, power: float) -> None:
    rng = np.random.default_rng(2)
    effect = detectable(0.3, n, confidence, power)
    intervals = [paired(row.tolist(), confidence) for row in rng.normal(effect, 0.3, (RUNS, n))]
    assert covered(sum(i.low > 0 or i.high < 0 for i in intervals) / RUNS, power)


@given(st.integers(2, 40), st.floats(0.001, 10))
def test_more_pairs_and_less_noise_show_smaller_effects(n: int, sd: float) -> None:
    assert detectable(sd, n + 1) < detectable(sd, n)
    assert detectable(2 * sd, n) == pytest.approx(2 * detectable(sd, n))
    assert detectable(sd, n, 0.9) < detectable(sd, n, 0.95) < detectable(sd, n, 0.95, 0.9)


@given(scores)
def test_the_gain_changes_sign_with_the_direction_and_with_the_order(baseline: list[float]) -> None:
    best = [score - i for i, score in enumerate(baseline)]
    down = gain(baseline, best)
    assert down.mean >= 0
    for other in (gain(baseline, best, direction="maximize"), gain(best, baseline)):
        assert (other.low, other.mean, other.high) == pytest.approx((-down.high, -down.mean, -down.low))


def test_pairs_see_what_the_unpaired_cannot() -> None:
    baseline = [1.0, 1.1, 1.2, 1.3, 1.4]
    best = [score - 0.01 - 0.001 * i for i, score in enumerate(baseline)]
    assert gain(baseline, best).low > 0 > unpaired_gain(baseline, best).low


@given(scores, st.floats(0.5, 0.98))
def test_more_confidence_is_a_wider_interval(values: list[float], confidence: float) -> None:
    narrow, wide = paired(values, confidence), paired(values, confidence + 0.01)
    assert wide.low <= narrow.low <= narrow.mean <= narrow.high <= wide.high


def test_one_observation_says_nothing_of_the_scatter() -> None:
    assert (paired([0.3]).low, paired([0.3]).high) == (-math.inf, math.inf)
    assert (unpaired_gain([1.0, 1.1], [0.9]).low, unpaired_gain([1.0, 1.1], [0.9]).n) == (-math.inf, 1)
    noise = noise_floor([1.0])
    assert math.isnan(noise.sd)
    assert (noise.low, noise.high) == (0.0, math.inf)
    assert detectable(0.1, 1) == math.inf


def test_no_scatter_is_an_interval_without_width() -> None:
    assert (paired([0.1, 0.1, 0.1]).low, paired([0.1, 0.1, 0.1]).high) == (pytest.approx(0.1), pytest.approx(0.1))
    same = unpaired_gain([2.0, 2.0], [1.0, 1.0])
    assert (same.low, same.high) == (1.0, 1.0)
    assert detectable(0.0, 3) == 0.0


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf, 1.0]])
def test_what_is_not_a_sample_is_refused(bad: list[float]) -> None:
    for measure in (noise_floor, paired):
        with pytest.raises(ValueError, match="expected finite numbers"):
            measure(bad)
    with pytest.raises(ValueError, match="expected finite numbers"):
        unpaired_gain(bad, [1.0, 2.0])
    with pytest.raises(ValueError, match="pair them by seed"):
        gain([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="confidence must be between"):
        paired([1.0, 2.0], 95)
    with pytest.raises(ValueError, match="power must be between"):
        detectable(0.1, 3, 0.95, 0.01)
    with pytest.raises(ValueError, match="not negative"):
        detectable(-0.1, 3)

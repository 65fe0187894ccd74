from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outer.catalogue import compose
from outer.check import Check, Finding
from outer.compare import Evidence, Pair, Verdict, decide, difference, new_functions

PASSED = Check((Finding("parses", True),), 20, 4, 0.1)
ACTIVE = Evidence(frozenset({"Tabu.shape"}), frozenset({"Tabu.shape", "Strategy.propose"}), 40, 7)
SCORES = st.floats(0.5, 2.0).map(lambda value: round(value, 4))


def pairs_of(*differences: float) -> list[Pair]:
    """Pairs whose candidate is better by so much."""
    return [Pair(seed, (1.0,), (1.0 - gain,)) for seed, gain in enumerate(differences)]


def verdict(pairs: list[Pair], confidence: float = 0.9, direction: str = "minimize") -> Verdict:
    return decide(pairs, ACTIVE, PASSED, confidence, direction)  # type: ignore[arg-type]


def test_a_gain_that_stands_out_is_adopted_and_a_loss_is_rejected() -> None:
    assert verdict(pairs_of(0.010, 0.012, 0.011)).decision == "adopt"
    assert verdict(pairs_of(-0.010, -0.012, -0.011)).decision == "reject"


def test_an_interval_that_holds_zero_is_indecisive_and_says_what_it_could_have_seen() -> None:
    found = verdict(pairs_of(0.01, -0.012, 0.004))
    assert found.decision == "indecisive"
    assert found.low is not None and found.high is not None and found.detectable is not None
    assert found.low < 0 < found.high
    assert found.detectable > abs(found.gain or 0.0)


@pytest.mark.parametrize("differences", [(), (0.5,)])
def test_fewer_than_two_pairs_decide_nothing(differences: tuple[float, ...]) -> None:
    found = verdict(pairs_of(*differences))
    assert (found.decision, found.low, found.high, found.detectable) == ("indecisive", None, None, None)
    assert found.gain == (pytest.approx(differences[0]) if differences else None)
    assert "an interval needs two" in found.reason


@pytest.mark.parametrize("same", [0.0, 0.01, -0.01])
def test_pairs_without_scatter_decide_nothing(same: float) -> None:
    assert verdict(pairs_of(same, same, same)).decision == "indecisive"


def test_pairs_whose_differences_vary_by_rounding_only_decide_nothing() -> None:
    pairs = [Pair(0, (0.3,), (0.1,)), Pair(1, (1.2,), (1.0,)), Pair(2, (0.5,), (0.3,))]
    assert len({difference(pair, "minimize") for pair in pairs}) > 1
    assert verdict(pairs).decision == "indecisive"


def test_several_fresh_seeds_count_as_one_observation() -> None:
    assert difference(Pair(1, (1.0, 1.2), (0.9, 1.1, 1.0)), "minimize") == pytest.approx(0.1)


@pytest.mark.parametrize("missing", [(), (float("nan"),), (1.0, float("inf"))])
def test_a_pair_without_both_scores_is_left_out(missing: tuple[float, ...]) -> None:
    pairs = [*pairs_of(0.010, 0.012, 0.011), Pair(7, missing, missing)]
    found = verdict(pairs)
    assert (found.decision, found.pairs) == ("adopt", 3)


def test_an_arm_that_failed_more_often_than_the_other_cannot_win() -> None:
    won, lost = pairs_of(0.010, 0.012, 0.011), pairs_of(-0.010, -0.012, -0.011)
    assert verdict([*won, Pair(7, (1.0,), ())]).decision == "indecisive"
    assert verdict([*lost, Pair(7, (), (1.0,))]).decision == "indecisive"
    assert verdict([*won, Pair(7, (), (1.0,))]).decision == "adopt"
    assert verdict([*lost, Pair(7, (1.0,), ())]).decision == "reject"


def test_pairs_that_share_a_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds of their own"):
        verdict([Pair(3, (1.0,), (0.9,)), Pair(3, (1.0,), (0.8,))])


def test_a_candidate_that_failed_its_check_is_invalid_whatever_it_scored() -> None:
    check = Check((Finding("parses", True), Finding("imports", False, "line 2: imports os")), 0, 0, 0.1)
    found = decide(pairs_of(0.010, 0.012, 0.011), ACTIVE, check, 0.9)
    assert found.decision == "invalid"
    assert "line 2: imports os" in found.reason


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (replace(ACTIVE, ran=frozenset({"Strategy.propose"})), "none of its 1 new functions ever ran"),
        (replace(ACTIVE, differing=0), "all 40 times"),
        (replace(ACTIVE, new=ACTIVE.new | {"Annealing.accept", "Strategy.propose"}), "class Annealing"),
    ],
)
def test_a_gain_that_is_not_the_new_code_s_own_is_inert(evidence: Evidence, reason: str) -> None:
    found = decide(pairs_of(0.010, 0.012, 0.011), evidence, PASSED, 0.9)
    assert found.decision == "inert"
    assert reason in found.reason


def test_new_functions_that_never_ran_are_named_and_do_no_harm_where_others_ran() -> None:
    found = decide(pairs_of(0.01, 0.012), replace(ACTIVE, new=ACTIVE.new | {"untried_step"}), PASSED, 0.8)
    assert found.idle == ("untried_step",)
    assert found.decision == "adopt"


def test_without_compared_decisions_nothing_is_adopted() -> None:
    found = decide(pairs_of(0.010, 0.012, 0.011), replace(ACTIVE, compared=0, differing=0), PASSED, 0.9)
    assert found.decision == "indecisive"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=8))
def test_swapping_the_arms_turns_the_verdict_round(scores: list[tuple[float, float]]) -> None:
    ours = verdict([Pair(i, (a,), (b,)) for i, (a, b) in enumerate(scores)])
    theirs = verdict([Pair(i, (b,), (a,)) for i, (a, b) in enumerate(scores)])
    opposite = {"adopt": "reject", "reject": "adopt", "indecisive": "indecisive"}
    assert theirs.decision == opposite[ours.decision]
    assert theirs.gain == -(ours.gain or 0.0)
    assert theirs.low == pytest.approx(-(ours.high or 0.0))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=8))
def test_maximizing_is_minimizing_the_negative(scores: list[tuple[float, float]]) -> None:
    up = verdict([Pair(i, (a,), (b,)) for i, (a, b) in enumerate(scores)], direction="maximize")
    down = verdict([Pair(i, (-a,), (-b,)) for i, (a, b) in enumerate(scores)])
    assert up == down


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=8), st.floats(0.0, 1.0), st.randoms())
def test_a_better_candidate_is_never_judged_worse(
    scores: list[tuple[float, float]], better: float, rng: random.Random
) -> None:
    order = {"reject": 0, "indecisive": 1, "adopt": 2}
    pairs = [Pair(i, (a,), (b,)) for i, (a, b) in enumerate(scores)]
    shifted = [replace(pair, candidate=(pair.candidate[0] - better,)) for pair in pairs]
    shuffled = rng.sample(shifted, len(shifted))
    assert order[verdict(shuffled).decision] >= order[verdict(pairs).decision]


@pytest.mark.parametrize("count", [2, 5])
def test_a_useless_candidate_is_adopted_as_seldom_as_the_confidence_says(count: int) -> None:
    rng, trials, confidence = random.Random(count), 600, 0.8
    adopted = 0
    for _ in range(trials):
        pairs = [Pair(i, (rng.gauss(1.1, 0.01),), (rng.gauss(1.1, 0.01),)) for i in range(count)]
        adopted += verdict(pairs, confidence).decision == "adopt"
    # The nominal rate is 0.1; four standard errors over 600 trials are 0.049.
    assert abs(adopted / trials - (1 - confidence) / 2) < 0.049


def test_the_detectable_gain_is_found_four_times_out_of_five() -> None:
    rng, trials, sd, count = random.Random(1), 300, 0.01, 6
    useless = [verdict(pairs_of(*(rng.gauss(0.0, sd) for _ in range(count)))) for _ in range(trials)]
    gain = statistics.fmean(found.detectable or 0.0 for found in useless)
    useful = [verdict(pairs_of(*(rng.gauss(gain, sd) for _ in range(count)))) for _ in range(trials)]
    # Four standard errors are 0.09; estimated from so few pairs, the gain is a little too small on average.
    assert abs(sum(found.decision == "adopt" for found in useful) / trials - 0.8) < 0.1


def test_new_functions_are_those_whose_body_the_incumbent_lacks() -> None:
    incumbent = """
def same(): return 1
def changed(): return 1
class A:
    def f(self): return 1
"""
    candidate = """
def same():
    "With a docstring."
    return 1  # and a comment
def changed(): return 2
class A:
    def f(self): return 1
    def g(self):
        def inner(): return 3
        return inner
class B:
    def f(self): return 1
"""
    assert new_functions(incumbent, candidate) == {"changed", "A.g", "A.g.<locals>.inner", "B.f"}


def test_what_a_mechanism_adds_is_new_against_the_seed_and_nothing_is_new_against_itself(seed_source: str) -> None:
    tabu, both = compose(["tabu"]), compose(["tabu", "novelty"])
    assert {"Tabu.shape", "Strategy.propose", "untried_step"} <= new_functions(seed_source, tabu)
    assert new_functions(tabu, tabu) == frozenset()
    added = new_functions(tabu, both)
    assert {"Novelty.choose", "Strategy.propose"} <= added
    assert not any(name.startswith("Tabu.") for name in added)

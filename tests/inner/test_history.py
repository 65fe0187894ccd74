"""The words of a strategy: the space of a constant, what a history says of itself, and records as JSON."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inner import history as words
from inner.history import (
    Avoid,
    Block,
    Change,
    Constant,
    Experiment,
    History,
    Move,
    Proposal,
    Request,
    TaskView,
    direction_of,
    moves_between,
    to_json,
)

MAGNITUDES = st.one_of(st.floats(1e-8, 1e8), st.integers(1, 10**6).map(float))


@st.composite
def numbers(draw):
    """A constant that is a number, with bounds that a task file may have."""
    kind = draw(st.sampled_from(["int", "float"]))
    scale = draw(st.sampled_from(["log", "linear"]))
    if kind == "int":
        power = draw(st.booleans())
        low = draw(st.integers(0 if scale == "log" or power else -1000, 5000))
        high = low + draw(st.integers(1, 10**6))
        assume(not power or any(low <= 2**p <= high for p in range(24)))
        return Constant("X", kind, low, high, scale, power_of_two=power)
    low = draw(st.one_of(st.just(0.0), MAGNITUDES))
    if scale == "linear" and draw(st.booleans()):
        low = -low
    high = low + draw(MAGNITUDES)
    assume(high - low > 1e-6 * max(abs(low), abs(high)))  # a range that floats can tell apart
    return Constant("X", kind, low, high, scale)


@given(numbers(), st.floats(allow_nan=False))
def test_what_is_clipped_is_allowed(constant, value):
    assert constant.allows(constant.clip(value))


@given(numbers(), st.floats(allow_nan=False))
def test_clipping_twice_is_clipping_once(constant, value):
    once = constant.clip(value)
    assert constant.clip(once) == once
    assert type(constant.clip(once)) is {"int": int, "float": float}[constant.kind]


@given(numbers(), st.floats(0, 1))
def test_clipping_inside_the_bounds_moves_a_value_by_no_more_than_its_rounding(constant, share):
    value = min(constant.low + share * (constant.high - constant.low), constant.high)
    clipped = constant.clip(value)
    if constant.kind == "float":
        assert abs(clipped - value) <= max(5e-4 * abs(value), math.ulp(value))
    elif not constant.power_of_two:
        assert abs(clipped - value) <= 0.5


@given(numbers(), st.floats(allow_nan=False))
def test_a_power_of_two_is_one_wherever_the_bounds_hold_one(constant, value):
    if constant.power_of_two and value > 0:
        clipped = constant.clip(value)
        assert clipped == 0 or math.log2(clipped).is_integer()


@given(numbers(), st.floats(allow_nan=False), st.sampled_from(["up", "down"]), st.sampled_from([0.25, 0.5, 1.0, 3.0]))
def test_a_step_goes_where_it_is_told_until_the_end_of_the_range(constant, start, direction, size):
    value = constant.clip(start)
    moved = constant.step(value, direction, size)
    assert constant.allows(moved)
    end = constant.clip(math.inf if direction == "up" else -math.inf)
    if value == end:
        assert moved == value
    else:
        assert moved > value if direction == "up" else moved < value


@given(numbers(), st.floats(allow_nan=False))
def test_steps_reach_both_ends(constant, start):
    for direction, end in (("up", math.inf), ("down", -math.inf)):
        value, seen = constant.clip(start), 0
        while (moved := constant.step(value, direction)) != value:
            value, seen = moved, seen + 1
            assert seen < 200
        assert value == constant.clip(end)


def test_a_step_on_a_log_scale_is_a_factor_of_two_and_on_a_linear_one_a_quarter():
    assert Constant("LR", "float", 1e-4, 1.0, "log").step(0.02, "up") == 0.04
    assert Constant("LR", "float", 1e-4, 1.0, "log").step(0.02, "down", 2) == 0.005
    assert Constant("R", "float", 0.0, 1.0).step(0.5, "down") == 0.25
    assert Constant("B", "int", 512, 65536, "log", power_of_two=True).step(16384, "down") == 8192


def test_a_log_scale_that_begins_at_zero_reaches_it_and_leaves_it():
    constant = Constant("WD", "float", 0.0, 1.0, "log")
    assert constant.step(0.001, "down") == 0.0
    assert constant.step(0.0, "down") == 0.0
    assert constant.step(0.0, "up") == 0.002


def test_a_small_range_of_whole_numbers_is_walked_one_by_one():
    constant = Constant("DEPTH", "int", 2, 4)
    assert [constant.step(value, "up") for value in (2, 3, 4)] == [3, 4, 4]
    assert [constant.step(value, "down") for value in (2, 3, 4)] == [2, 2, 3]


def test_bounds_that_are_no_powers_of_two_are_not_left():
    constant = Constant("B", "int", 3, 100, "log", power_of_two=True)
    assert (constant.clip(1), constant.clip(1000)) == (4, 64)


@pytest.mark.parametrize("call", [lambda c: c.clip(1.0), lambda c: c.step("S", "up")])
def test_a_choice_has_no_nearest_value_and_no_direction(call):
    with pytest.raises(ValueError, match="PATTERN"):
        call(Constant("PATTERN", "choice", choices=("S", "L")))


def test_nan_has_no_nearest_value():
    with pytest.raises(ValueError, match="X"):
        Constant("X", "float", 0.0, 1.0).clip(math.nan)


@pytest.mark.parametrize(
    ("constant", "value", "allowed"),
    [
        (Constant("X", "int", 1, 8), 8, True),
        (Constant("X", "int", 1, 8), 9, False),
        (Constant("X", "int", 1, 8), 2.0, False),
        (Constant("X", "int", 0, 8), True, False),
        (Constant("X", "int", 1, 8), 10**400, False),
        (Constant("X", "float", 0.0, 1.0), 1, True),
        (Constant("X", "float", 0.0, 1.0), math.nan, False),
        (Constant("X", "float", 0.0, 1.0), math.inf, False),
        (Constant("X", "float", 0.0, 1.0), "0.5", False),
        (Constant("X", "float", 0.0, 1.0), None, False),
        (Constant("X", "float", 0.0, 1.0), (0.5,), False),
        (Constant("X", "choice", choices=("S", (0.8, 0.95))), (0.8, 0.95), True),
        (Constant("X", "choice", choices=("S", (0.8, 0.95))), (0.8, 0.9), False),
        (Constant("X", "choice", choices=("S", "L")), {"S": 1}, False),
    ],
)
def test_what_is_allowed(constant, value, allowed):
    assert constant.allows(value) is allowed


@pytest.mark.parametrize(
    ("kind", "before", "after", "direction"),
    [("float", 1.0, 2.0, "up"), ("int", 2, 1, "down"), ("int", 2, 2, "set"), ("int", None, 2, "set"),
     ("choice", 1, 2, "set")],
)  # fmt: skip
def test_the_direction_of_a_move(kind, before, after, direction):
    assert (
        direction_of(Constant("X", kind, 0, 9, choices=(1, 2) if kind == "choice" else ()), before, after) == direction
    )


def test_moves_are_the_constants_of_the_space_that_differ_in_its_order():
    space = {name: Constant(name, "int", 0, 9) for name in "CAB"}
    moves = moves_between(space, {"A": 1, "B": 2, "Z": 1}, {"A": 0, "B": 2, "C": 5, "Z": 2})
    assert moves == (Move("C", "set", None, 5), Move("A", "down", 1, 0))


# Histories.

STATUSES = ["baseline", "keep", "discard", "crash", "timeout", "invalid", "pruned", "refused"]


def experiment(index, status, score):
    return Experiment(index, index - 1 if index else None, Change(), "", {"X": index % 3}, (), status, score, 1.0)


@st.composite
def histories(draw):
    rows = draw(st.lists(st.tuples(st.sampled_from(STATUSES[1:]), st.floats(0.5, 2)), max_size=12))
    experiments = [experiment(0, "baseline", draw(st.floats(0.5, 2)))]
    for index, (status, score) in enumerate(rows, 1):
        experiments.append(experiment(index, status, None if status in words.FAILED else score))
    return History(tuple(experiments), None, draw(st.sampled_from(["minimize", "maximize"])))


@given(histories())
def test_the_best_is_a_kept_one_that_no_kept_one_beats_and_the_earliest_of_its_equals(history):
    best = history.best
    assert best in history.kept
    assert all(history.gain(e.score, best.score) <= 0 for e in history.kept)
    assert all(e.index >= best.index for e in history.kept if e.score == best.score)


@given(histories())
def test_the_current_one_is_the_last_kept_and_the_baseline_the_first(history):
    assert history.current is [e for e in history if e.status in ("baseline", "keep")][-1]
    assert history.baseline is history[0]
    assert [e for e in history if not e.failed] == list(history.scored)


@given(histories(), st.integers(0, 15))
def test_the_last_of_a_history_keep_their_indices(history, count):
    last = history.last(count)
    assert last.experiments == history.experiments[max(0, len(history) - count) :]
    assert (last.direction, last.noise) == (history.direction, history.noise)


def test_a_discard_is_never_the_best_however_good():
    history = History((experiment(0, "baseline", 1.0), experiment(1, "discard", 0.5)))
    assert history.best.index == 0


def test_gain_is_positive_for_better_and_nan_for_what_has_no_score():
    down, up = History(direction="minimize"), History(direction="maximize")
    assert (down.gain(1.0, 1.5), up.gain(1.0, 1.5)) == (0.5, -0.5)
    assert math.isnan(down.gain(None, 1.0))
    assert math.isnan(down.gain(1.0, None))


def test_an_empty_history_has_no_best():
    with pytest.raises(ValueError):
        _ = History().best
    with pytest.raises(IndexError):
        _ = History().current


def test_the_experiments_and_the_values_of_a_constant():
    moved = replace(experiment(1, "keep", 1.0), moves=(Move("X", "up", 0, 1),))
    history = History((experiment(0, "baseline", 1.0), moved, experiment(3, "discard", 1.0)))
    assert history.moves_of("X") == (moved,)
    assert history.moves_of("Y") == ()
    assert history.values_of("X") == (0, 1)
    assert history.values_of("Y") == ()


# Records as JSON and back.

TEXT = st.text(max_size=20)
FINITE = st.floats(allow_nan=False)
VALUES = st.one_of(st.integers(), FINITE, TEXT, st.lists(FINITE, min_size=1, max_size=3).map(tuple))
NAMES = st.dictionaries(TEXT, VALUES, max_size=3)
DIRECTIONS = st.sampled_from(["up", "down", "set"])
CHANGES = st.builds(
    Change, NAMES, st.lists(st.builds(Block, TEXT, TEXT), max_size=2).map(tuple), st.one_of(st.none(), TEXT)
)
INDICES = st.integers(0, 10**9)
PARENTS = st.one_of(st.none(), INDICES)
PROPOSALS = st.builds(Proposal, CHANGES, TEXT, PARENTS)
REQUESTS = st.builds(
    Request,
    st.lists(TEXT, max_size=2).map(tuple),
    st.lists(st.builds(Avoid, TEXT, st.one_of(st.none(), DIRECTIONS), st.one_of(st.none(), VALUES)), max_size=2).map(
        tuple
    ),
    PARENTS,
    TEXT,
    INDICES,
    PARENTS,
)
MOVES = st.builds(Move, TEXT, DIRECTIONS, st.one_of(st.none(), VALUES), VALUES)
EXPERIMENTS = st.builds(
    Experiment,
    INDICES,
    PARENTS,
    CHANGES,
    TEXT,
    NAMES,
    st.lists(MOVES, max_size=2).map(tuple),
    st.sampled_from(STATUSES),
    st.one_of(st.none(), FINITE),
    FINITE,
)
CONSTANTS = st.one_of(
    numbers(), st.lists(VALUES, min_size=2, max_size=3).map(lambda v: Constant("P", "choice", choices=tuple(v)))
)
VIEWS = st.builds(
    TaskView, TEXT, TEXT, st.sampled_from(["minimize", "maximize"]), FINITE, INDICES,
    st.dictionaries(TEXT, CONSTANTS, max_size=3),
)  # fmt: skip


@pytest.mark.parametrize(
    ("records", "read"),
    [
        (CHANGES, words.change_from),
        (PROPOSALS, words.proposal_from),
        (REQUESTS, words.request_from),
        (EXPERIMENTS, words.experiment_from),
        (VIEWS, words.task_view_from),
    ],
    ids=["change", "proposal", "request", "experiment", "task view"],
)
def test_a_record_comes_back_from_json_as_it_was(records, read):
    @given(records)
    def comes_back(record):
        back = read(json.loads(json.dumps(to_json(record))))
        assert back == record
        assert repr(back) == repr(record)  # 1 == 1.0, but a whole number must stay one

    comes_back()


@pytest.mark.parametrize("data", [{}, {"change": None}, {"change": {"blocks": [{}]}}, {"change": {"constants": 3}}])
def test_what_is_no_proposal_is_refused(data):
    with pytest.raises((TypeError, KeyError, ValueError, AttributeError)):
        words.proposal_from(data)

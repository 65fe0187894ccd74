from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inner.history import Avoid, Change, Constant, History, Proposal, Request, TaskView, Value
from inner.host import Host
from inner.sandbox import tier
from outer.catalogue import CATALOGUE, compose, conflict
from outer.catalogue.common import size_of, untried_step
from outer.check import check
from outer.compare import new_functions
from outer.rehearsal import Rehearsal

ROOT = Path(__file__).parents[2]
SINGLES = [(entry.name,) for entry in CATALOGUE]
PAIRS = [pair for pair in combinations([entry.name for entry in CATALOGUE], 2) if conflict(pair) is None]
EITHER = (("coverage", "bandit"), ("annealing", "noise_floor"))
REST = [entry.name for entry in CATALOGUE if entry.name not in EITHER[0] + EITHER[1]]
LARGEST = [(*REST, *either) for either in product(*EITHER)]

THE_IDEA: dict[str, Value] = {"DEPTH": 9}

Grow = Callable[..., History]
Perform = Callable[[str, History], Host]


class Model:
    """A model with prepared ideas, which keeps what it was asked."""

    def __init__(self, *ideas: Mapping[str, Value]) -> None:
        self.ideas = tuple(Proposal(Change(idea)) for idea in ideas)
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> tuple[Proposal, ...]:
        self.requests.append(request)
        return self.ideas[: request.candidates]


@pytest.fixture
def next_of(perform: Perform) -> Callable[..., tuple[Proposal, Model]]:
    """What a strategy with these mechanisms proposes after a history, and what it asked the model."""

    def ask(names: Sequence[str], history: History, *ideas: Mapping[str, Value]) -> tuple[Proposal, Model]:
        model = Model(*(ideas or (THE_IDEA,)))
        return perform(compose(names), history).propose(history, model).answer, model

    return ask


Next = Callable[..., tuple[Proposal, Model]]


@pytest.fixture
def keeps(perform: Perform) -> Callable[[Sequence[str], History, float | None], bool]:
    """Whether a strategy with these mechanisms keeps a candidate with this score."""

    def ask(names: Sequence[str], history: History, score: float | None) -> bool:
        best = history.best
        candidate = replace(best, index=len(history), parent=best.index, status="discard", score=score)
        return perform(compose(names), history).accept(history, candidate).answer

    return ask


# What is written.


def test_there_are_seven_mechanisms_and_more_each_with_a_source() -> None:
    assert len(CATALOGUE) >= 7
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    for entry in CATALOGUE:
        source = compose([entry.name])
        assert entry.citation in " ".join(source.split())
        assert f"class {entry.class_name}:" in source
        assert entry.symptoms


def test_whatever_is_composed_is_clean(tmp_path: Path) -> None:
    for number, names in enumerate(SINGLES + PAIRS + LARGEST):
        (tmp_path / f"strategy_{number}.py").write_text(compose(names), encoding="utf-8")
    for command in (["check"], ["format", "--check"]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", ROOT / "pyproject.toml", tmp_path],
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_whatever_is_composed_is_typed(tmp_path: Path) -> None:
    for number, names in enumerate(SINGLES + LARGEST):
        (tmp_path / f"strategy_{number}.py").write_text(compose(names), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache",
         *tmp_path.glob("*.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_order_of_names_does_not_matter_but_for_proposals_of_their_own() -> None:
    assert compose(["tabu", "novelty", "opposition"]) == compose(["opposition", "novelty", "tabu"])
    assert compose(["opposition", "recombination"]) != compose(["recombination", "opposition"])


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ([], ValueError, "at least one mechanism"),
        (["tabu", "tabu"], ValueError, "named twice"),
        (["coverage", "bandit"], ValueError, "which constants"),
        (["noise_floor", "annealing"], ValueError, "what is kept"),
        (["tabu", "taboo"], KeyError, "no mechanism 'taboo'"),
    ],
)
def test_what_cannot_be_composed_is_refused(names: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compose(names)


# What runs.


def test_every_mechanism_and_every_compatible_pair_keeps_the_contract(
    task: TaskView, recorded: History, seed_source: str
) -> None:
    def faults(names: tuple[str, ...]) -> str | None:
        found = check(compose(names), seed_source, task, [recorded], tier())
        return None if found.ok else f"{names}: {found.feedback}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert [fault for fault in pool.map(faults, SINGLES + PAIRS + LARGEST) if fault] == []


@pytest.mark.parametrize("names", LARGEST)
def test_no_function_of_a_strategy_is_dead(
    names: tuple[str, ...], task: TaskView, recorded: History, perform: Perform
) -> None:
    source = compose(names)
    written = {name for name in new_functions("", source) if not name.endswith(".__init__")}
    host, ran = perform(source, recorded), set[str]()
    for length in range(1, len(recorded) + 1):
        history = replace(recorded, experiments=recorded.experiments[:length])
        for silent in (False, True):
            ran |= set(host.propose(history, Rehearsal(task, history, silent)).functions)
        candidate = replace(history.best, index=length, status="discard")
        ran |= set(host.accept(history, candidate).functions)
    assert written - ran == set()


# What each mechanism does, where the seed strategy would take the model's first idea and keep any gain.


def test_tabu_forbids_what_failed_lately_and_undoing_what_was_kept(next_of: Next, grow: Grow) -> None:
    history = grow(
        ({"MATRIX_LR": 0.08}, 0.9, "keep"),
        ({"DEPTH": 6}, 1.1, "discard"),
        ({"WINDOW_PATTERN": "L"}, None, "crash"),
    )
    forbidden = (Avoid("MATRIX_LR", "down"), Avoid("DEPTH", "up"), Avoid("WINDOW_PATTERN", value="L"))
    proposal, model = next_of(["tabu"], history, {"DEPTH": 8}, {"WINDOW_PATTERN": "L"}, {"DEPTH": 3})
    assert model.requests[0].avoid == forbidden
    assert dict(proposal.change.constants) == {"DEPTH": 3}


def test_tabu_forgets(next_of: Next, grow: Grow) -> None:
    history = grow(({"DEPTH": 6}, 1.1, "discard"), *[({"WINDOW_PATTERN": "L"}, 1.1, "discard")] * 7)
    proposal, _ = next_of(["tabu"], history, {"DEPTH": 8})
    assert dict(proposal.change.constants) == {"DEPTH": 8}


@pytest.mark.parametrize("status", ["discard", "crash"])
def test_opposition_answers_a_failure_by_the_same_step_the_other_way(status: str, next_of: Next, grow: Grow) -> None:
    history = grow(({"TOTAL_BATCH_SIZE": 2**18}, None if status == "crash" else 1.1, status))
    proposal, model = next_of(["opposition"], history)
    assert dict(proposal.change.constants) == {"TOTAL_BATCH_SIZE": 2**14}
    assert model.requests == []


@pytest.mark.parametrize(
    "steps",
    [
        [({"MATRIX_LR": 0.08}, 0.9, "keep")],
        [({"MATRIX_LR": 0.123456}, 0.9, "keep"), ({"MATRIX_LR": 0.2}, 0.8, "keep")],
        [({"MATRIX_LR": 0.02}, 1.1, "discard"), ({"MATRIX_LR": 0.08}, 1.1, "discard")],
        [({"WINDOW_PATTERN": "L"}, 1.1, "discard")],
        [({"MATRIX_LR": 0.08, "DEPTH": 6}, 1.1, "discard")],
        [({}, None, "refused")],
    ],
)
def test_opposition_leaves_everything_else_to_the_model(steps: list[object], next_of: Next, grow: Grow) -> None:
    proposal, _ = next_of(["opposition"], grow(*steps))
    assert dict(proposal.change.constants) == THE_IDEA


def test_pattern_search_goes_on_from_a_keep_and_halves_a_step_too_far(next_of: Next, grow: Grow) -> None:
    def proposed(*steps: object) -> dict[str, Value]:
        return dict(next_of(["pattern_search"], grow(*steps))[0].change.constants)

    keep, far = ({"MATRIX_LR": 0.08}, 0.9, "keep"), ({"MATRIX_LR": 0.32}, 1.1, "discard")
    assert proposed(keep) == {"MATRIX_LR": 0.32}
    assert proposed(keep, far) == {"MATRIX_LR": 0.16}
    assert proposed(keep, far, ({"MATRIX_LR": 0.16}, 1.1, "discard")) == THE_IDEA
    assert proposed(keep, ({"MATRIX_LR": 0.32}, 0.8, "keep")) == {"MATRIX_LR": 1.0}
    assert proposed(keep, ({"DEPTH": 6}, 1.1, "discard")) == THE_IDEA


def test_recombination_tries_the_two_nearest_misses_together_after_three_failures(next_of: Next, grow: Grow) -> None:
    steps = [
        ({"MATRIX_LR": 0.08}, 1.001, "discard"),
        ({"DEPTH": 6}, 1.2, "discard"),
        ({"WEIGHT_DECAY": 0.0}, 1.002, "discard"),
    ]
    both = {"MATRIX_LR": 0.08, "WEIGHT_DECAY": 0.0}
    assert dict(next_of(["recombination"], grow(*steps))[0].change.constants) == both
    assert dict(next_of(["recombination"], grow(*steps[:2]))[0].change.constants) == THE_IDEA
    again = [(both, 1.3, "discard"), ({"DEPTH": 2}, 1.3, "discard"), ({"DEPTH": 3}, 1.3, "discard")]
    other = dict(next_of(["recombination"], grow(*steps, *again))[0].change.constants)
    assert other == {"MATRIX_LR": 0.08, "DEPTH": 6}


def test_coverage_narrows_a_failed_search_to_the_constants_tried_least(next_of: Next, grow: Grow) -> None:
    failed = grow(({"DEPTH": 6}, 1.1, "discard"), ({"MATRIX_LR": 0.08}, 1.1, "discard"))
    _, model = next_of(["coverage"], failed)
    assert model.requests[0].constants == ("TOTAL_BATCH_SIZE", "WEIGHT_DECAY", "WINDOW_PATTERN")
    _, model = next_of(["coverage"], grow(({"DEPTH": 6}, 0.9, "keep")))
    assert model.requests[0].constants == ()


def test_the_bandit_comes_back_to_the_constant_that_paid(next_of: Next, grow: Grow) -> None:
    names = ("TOTAL_BATCH_SIZE", "WEIGHT_DECAY", "DEPTH", "WINDOW_PATTERN")
    losing = [({"DEPTH": 6}, 1.1, "discard"), ({"WEIGHT_DECAY": 0.0}, 1.1, "discard")] * 6
    losing += [({"WINDOW_PATTERN": "L"}, 1.1, "discard"), ({"TOTAL_BATCH_SIZE": 2**17}, 1.1, "discard")] * 6
    paying = [({"MATRIX_LR": 0.04 + 0.01 * n}, 0.95 - 0.05 * n, "keep") for n in range(1, 7)]
    _, model = next_of(["bandit"], grow(*losing, *paying))
    asked = model.requests[0].constants
    assert asked[0] == "MATRIX_LR"
    assert len(asked) == 3 and set(asked[1:]) <= set(names)


def test_the_bandit_takes_no_gain_within_noise_for_a_reward(next_of: Next, grow: Grow) -> None:
    steps = [({"MATRIX_LR": 0.04 + 0.01 * n}, 1 - 0.001 * n, "keep") for n in range(1, 13)]
    _, model = next_of(["bandit"], grow(*steps, noise=0.01))
    assert "MATRIX_LR" not in model.requests[0].constants


def test_fresh_history_hides_the_past_at_each_restart(perform: Perform, grow: Grow) -> None:
    model, host = Model(THE_IDEA), perform(compose(["fresh_history"]), grow())
    for count in range(17):
        host.propose(grow(*[({"DEPTH": 6}, 1.1, "discard")] * count), model)
    assert [request.show for request in model.requests] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_novelty_takes_the_idea_farthest_from_everything_run(next_of: Next, grow: Grow) -> None:
    history = grow(({"MATRIX_LR": 0.08}, 1.1, "discard"))
    ideas: list[dict[str, Value]] = [{"MATRIX_LR": 0.09}, {"MATRIX_LR": 0.01}, {"WINDOW_PATTERN": "L"}]
    proposal, model = next_of(["novelty"], history, *ideas)
    assert model.requests[0].candidates >= 3
    assert dict(proposal.change.constants) == {"MATRIX_LR": 0.01}


def test_annealing_keeps_a_small_loss_early_and_goes_on_from_there(
    keeps: Callable[..., bool], next_of: Next, grow: Grow
) -> None:
    early = grow()
    assert keeps(["annealing"], early, 0.99)
    assert keeps(["annealing"], early, 1.0001)
    assert not keeps(["annealing"], early, 2.0)
    assert not keeps(["annealing"], early, None)
    worse = grow(({"DEPTH": 6}, 0.90, "keep"), ({"MATRIX_LR": 0.08}, 0.901, "keep"))
    proposal, model = next_of(["annealing"], worse)
    assert (proposal.parent, model.requests[0].parent) == (2, 2)
    better = grow(({"DEPTH": 6}, 0.90, "keep"))
    proposal, model = next_of(["annealing"], better)
    assert (proposal.parent, model.requests[0].parent) == (None, None)


def test_annealing_grows_greedy_towards_the_end_and_without_a_noise_floor(
    keeps: Callable[..., bool], grow: Grow
) -> None:
    late = grow(*[({"DEPTH": 6}, 1.1, "discard")] * 29)
    assert not keeps(["annealing"], late, 1.0001)
    assert keeps(["annealing"], late, 0.9999)
    assert not keeps(["annealing"], grow(noise=None), 1.0001)


def test_the_noise_floor_lets_luck_go(keeps: Callable[..., bool], grow: Grow) -> None:
    history = grow(noise=0.01)
    assert not keeps(["noise_floor"], history, 0.985)
    assert keeps(["noise_floor"], history, 0.975)
    assert keeps(["noise_floor"], grow(noise=None), 0.999)


# What they share.


def test_where_the_model_has_no_idea_a_step_is_taken_that_obeys_the_request(perform: Perform, grow: Grow) -> None:
    history = grow(({"DEPTH": 5}, 1.1, "discard"), ({"MATRIX_LR": 0.08}, 1.1, "discard"))
    allowed = {"TOTAL_BATCH_SIZE", "WEIGHT_DECAY", "WINDOW_PATTERN"}
    for names in (["coverage"], ["coverage", "tabu"]):
        assert set(perform(compose(names), history).propose(history, Model()).answer.change.constants) < allowed


def test_a_step_goes_to_a_value_not_run_yet_as_long_as_there_is_one(task: TaskView, grow: Grow) -> None:
    small = replace(task, constants={"WINDOW_PATTERN": task.constants["WINDOW_PATTERN"]})

    def steps(history: History) -> set[object]:
        proposals = [untried_step(small, random.Random(n), history, history.best, Request()) for n in range(20)]
        return {proposal.change.constants["WINDOW_PATTERN"] for proposal in proposals}

    assert steps(grow()) == {"L", "SL"}
    assert steps(grow(({"WINDOW_PATTERN": "L"}, 1.1, "discard"))) == {"SL"}
    tried = grow(({"WINDOW_PATTERN": "L"}, 1.1, "discard"), ({"WINDOW_PATTERN": "SL"}, 1.1, "discard"))
    assert steps(tried) == {"L", "SL"}


def test_a_step_obeys_the_request_as_long_as_it_can(task: TaskView, grow: Grow) -> None:
    history = grow()

    def steps(request: Request) -> set[tuple[str, Value]]:
        proposals = [untried_step(task, random.Random(n), history, history.best, request) for n in range(40)]
        return {item for proposal in proposals for item in proposal.change.constants.items()}

    assert steps(Request(constants=("DEPTH",))) == {("DEPTH", 1), ("DEPTH", 7)}
    assert steps(Request(constants=("DEPTH",), avoid=(Avoid("DEPTH", "up"),))) == {("DEPTH", 1)}
    assert steps(Request(constants=("WINDOW_PATTERN",), avoid=(Avoid("WINDOW_PATTERN", value="L"),))) == {
        ("WINDOW_PATTERN", "SL")
    }
    everything = tuple(Avoid(name) for name in task.constants)
    assert len(steps(Request(avoid=everything))) > 4


def test_where_nothing_can_be_moved_the_same_surface_is_measured_again(task: TaskView, grow: Grow) -> None:
    history = grow()
    nothing = replace(task, constants={})
    assert untried_step(nothing, random.Random(0), history, history.best, Request()).change == Change()


@given(st.floats(0.002, 0.2), st.floats(0.1, 2.0), st.sampled_from(["log", "linear"]))
def test_a_step_is_as_long_as_the_space_counts_it(value: float, size: float, scale: Literal["log", "linear"]) -> None:
    constant = Constant("LR", "float", 0.0001, 1.0, scale)
    assert size_of(constant, value, constant.step(value, "up", size)) == pytest.approx(size, abs=0.01)

"""The measures of being stuck say of any history what plain Python says of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.stagnation import MEASURES, measure
from traces.store import Store

Moves = list[tuple[str, str, Any]]
History = list[tuple[str, Moves, bool]]


@dataclass(frozen=True)
class Constant:
    kind: str


SPACE = {"A": Constant("float"), "B": Constant("int"), "C": Constant("choice"), "D": Constant("float")}
FAILED = {"crash", "timeout", "invalid", "pruned", "refused"}


def oracle(history: History) -> dict[str, Any]:
    """The measures, said again without SQL."""
    n = len(history)
    seen: list[Any] = []
    repeated = same = longest = length = since = 0
    for status, moves, significant in history:
        setting = sorted((constant, repr(after)) for constant, _, after in moves)
        repeated += setting in seen
        seen.append(setting)
        length = 0 if status == "keep" else length + 1
        longest = max(longest, length)
        since = 0 if status == "keep" and significant else since + 1
    for (_, before, _), (_, after, _) in pairwise(history):
        same += bool({c for c, _, _ in before} & {c for c, _, _ in after})
    touched = Counter(c for _, moves, _ in history for c, _, _ in moves)
    total = sum(touched.values())
    entropy = -sum(k / total * math.log2(k / total) for k in touched.values()) if total else None
    return {
        "proposals": n,
        "repeated": repeated / n if n else None,
        "same_constant": same / (n - 1) if n > 1 else None,
        "entropy": entropy,
        "evenness": None if entropy is None else entropy / math.log2(len(SPACE)),
        "longest_without_keep": longest,
        "since_significant": since,
        "coverage": len({(c, d) for _, moves, _ in history for c, d, _ in moves}) / 7,
        "keep_rate": sum(s == "keep" for s, _, _ in history) / n if n else None,
        "failure_rate": sum(s in FAILED for s, _, _ in history) / n if n else None,
    }


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("stagnation") / "lab") as store:
        yield store


def put(store: Store, run: str, history: History) -> None:
    baseline = {"run": run, "index": 0, "step": "decided", "status": "baseline", "moves": [], "change": {}}
    store.put_many("experiment", [baseline | {"significant": None}])
    if history:
        store.put_many(
            "experiment",
            [
                {
                    "run": run,
                    "index": index,
                    "step": "decided",
                    "status": status,
                    "significant": significant,
                    "moves": [{"constant": c, "direction": d, "before": 0, "after": a} for c, d, a in moves],
                    "change": {"constants": {c: a for c, _, a in sorted(moves)}},
                }
                for index, (status, moves, significant) in enumerate(history, start=1)
            ],
        )


numbers = st.sampled_from(["A", "B", "D"]).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(["up", "down"]), st.sampled_from([1, 2.5, 0.1]))
)
choices = st.tuples(st.just("C"), st.just("set"), st.sampled_from(["SSSL", "L", [1, 2]]))
histories = st.lists(
    st.tuples(
        st.sampled_from(["keep", "discard", "discard", "discard", *sorted(FAILED)]),
        st.lists(numbers | choices, max_size=2, unique_by=lambda move: move[0]),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(histories)
def test_any_history_measures_as_in_plain_python(record: Store, history: History) -> None:
    run = f"run-{record.rows('SELECT count(DISTINCT run) AS n FROM experiment')[0]['n']}"
    put(record, run, history)
    found = asdict(measure(record, run, SPACE))
    assert found.pop("run") == run
    assert found == pytest.approx(oracle(history))


def test_an_edit_that_moves_no_constant_is_known_by_its_text(store: Store) -> None:
    edits = [{"blocks": [{"search": "a", "replace": replace}]} for replace in ("b", "c", "b", "b")]
    for index, change in enumerate(edits, start=1):
        store.put("experiment", run="r", index=index, step="decided", status="refused", change=change)
    assert measure(store, "r", 4).repeated == 0.5


def test_the_order_of_the_constants_does_not_make_a_change_another_one(
    store: Store, history: Callable[..., None]
) -> None:
    one, other = ("A", "up", 1), ("B", "down", 2)
    history(store, "r", [("baseline", []), ("keep", [one, other]), ("keep", [other, one]), ("keep", [one])])
    assert measure(store, "r", 4).repeated == pytest.approx(1 / 3)


def test_what_is_not_decided_yet_does_not_count(store: Store, history: Callable[..., None]) -> None:
    history(store, "r", [("baseline", []), ("keep", [("A", "up", 1)])])
    store.put("experiment", run="r", index=2, step="running", moves=[])
    assert measure(store, "r", 4).proposals == 1


def test_a_run_without_proposals_has_no_shares(store: Store, history: Callable[..., None]) -> None:
    history(store, "empty", [("baseline", [])])
    for run in ("empty", "unknown"):
        found = measure(store, run, SPACE)
        assert (found.proposals, found.longest_without_keep, found.since_significant, found.coverage) == (0, 0, 0, 0.0)
        assert {found.repeated, found.same_constant, found.entropy, found.evenness, found.keep_rate} == {None}
    with pytest.raises(ValueError, match="at least one constant, got 0"):
        measure(store, "empty", 0)


def test_a_count_of_numbers_is_a_space_with_two_directions_each(store: Store, history: Callable[..., None]) -> None:
    history(store, "r", [("baseline", []), ("keep", [("A", "up", 1)]), ("keep", [("B", "up", 1)])])
    found = measure(store, "r", 4)
    assert (found.coverage, found.entropy, found.evenness) == (2 / 8, 1.0, 0.5)
    assert measure(store, "r", 1).evenness is None


@pytest.mark.parametrize("name", MEASURES)
def test_each_query_answers_every_run_on_its_own(filled: Store, name: str) -> None:
    searches = {row["id"] for row in filled.rows("SELECT id FROM run WHERE kind = 'search'")}
    rows = filled.rows(MEASURES[name].sql)
    assert {row["run"] for row in rows} == searches, "a calibration proposes nothing"
    assert all(set(row) == {"run", "value"} for row in rows)


def test_every_measure_says_what_it_means() -> None:
    assert all(one.definition.endswith(".") and one.sql for one in MEASURES.values())

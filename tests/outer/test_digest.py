from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from inner.history import History, TaskView, to_json
from outer.digest import THRESHOLDS, Digest, diagnose, digest_of
from traces.errors import UserError
from traces.store import Store

CREATED = datetime(2026, 1, 1)
Record = Callable[[History], Digest]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "lab") as opened:
        yield opened


@pytest.fixture
def record(store: Store, task: TaskView) -> Record:
    """The digest of a history that was recorded as the loop records it."""

    def put(history: History) -> Digest:
        store.put(
            "study",
            id="s",
            command="run",
            task="t",
            config={},
            seed=1,
            status="done",
            noise=history.noise,
            created=CREATED,
        )
        store.put(
            "run",
            id="r",
            study="s",
            kind="search",
            seed=1,
            experiments=len(history),
            status="done",
            task="t",
            metric_source="scorer",
            tier="none",
            created=CREATED,
        )
        for experiment in history:
            before = [e.score for e in history if e.kept and e.index < experiment.index and e.score is not None]
            gain = history.gain(experiment.score, min(before, default=None))
            significant = gain > 2 * history.noise if history.noise and experiment.status == "keep" else None
            store.put(
                "experiment",
                run="r",
                index=experiment.index,
                parent=experiment.parent,
                step="decided",
                status=experiment.status,
                significant=significant,
                change=to_json(experiment.change),
                constants=dict(experiment.constants),
                moves=[to_json(move) for move in experiment.moves],
                score=experiment.score,
            )
        return digest_of(store, "r", replace(task, direction=history.direction))

    return put


def test_a_digest_counts_what_the_run_did_with_each_constant(record: Record, recorded: History) -> None:
    digest = record(recorded)
    tallies = {tally.constant: tally for tally in digest.constants}
    assert list(tallies) == list(recorded.baseline.constants)
    decay = tallies["WEIGHT_DECAY"]
    assert (decay.tries, decay.up, decay.down, decay.keeps, decay.failures) == (4, 3, 1, 1, 0)
    assert decay.gain == pytest.approx(0.01)
    rate = tallies["MATRIX_LR"]
    assert (rate.tries, rate.up, rate.down, rate.keeps, rate.failures) == (3, 3, 0, 1, 1)
    assert rate.gain == pytest.approx(0.05)
    assert tallies["WINDOW_PATTERN"].gain == pytest.approx(-0.003)


def test_a_digest_says_how_the_best_came_down_and_what_failed(record: Record, recorded: History) -> None:
    digest = record(recorded)
    assert digest.running_best == ((0, 1.0), (2, 0.99), (3, 0.94), (9, 0.93))
    assert (digest.baseline, digest.best, digest.keeps, digest.significant) == (1.0, 0.93, 3, 1)
    assert digest.failures == {"crash": 1, "refused": 1}
    assert (digest.tried, digest.possible) == (6, 9)


def test_a_digest_knows_which_way_is_better(record: Record, grow: Callable[..., History]) -> None:
    history = grow(({"DEPTH": 6}, 1.2, "keep"), ({"DEPTH": 8}, 1.1, "discard"))
    digest = record(replace(history, direction="maximize"))
    assert digest.best == 1.2
    assert {tally.constant: tally.gain for tally in digest.constants}["DEPTH"] == pytest.approx(0.2)


def test_a_digest_is_plain_data(record: Record, recorded: History) -> None:
    assert json.loads(json.dumps(dataclasses.asdict(record(recorded))))["run"] == "r"


def test_an_undecided_experiment_is_not_counted(
    store: Store, record: Record, recorded: History, task: TaskView
) -> None:
    before = record(recorded)
    moves = [{"constant": "DEPTH", "direction": "up", "before": 5, "after": 6}]
    store.put("experiment", run="r", index=len(recorded), parent=0, step="running", moves=moves)
    assert digest_of(store, "r", task) == before


def test_an_unknown_run_is_named(store: Store, task: TaskView) -> None:
    with pytest.raises(UserError, match="no run nobody"):
        digest_of(store, "nobody", task)


def test_a_run_that_has_only_begun_is_not_diagnosed(record: Record, grow: Callable[..., History]) -> None:
    diagnosis = diagnose(record(grow()))
    assert diagnosis.symptoms == ()
    assert "too few" in diagnosis.text


def names(digest: Digest) -> list[str]:
    return [symptom.name for symptom in diagnose(digest).symptoms]


def test_a_search_that_goes_well_has_no_symptom(record: Record, grow: Callable[..., History]) -> None:
    history = grow(
        ({"TOTAL_BATCH_SIZE": 2**15}, 0.97, "keep"),
        ({"WINDOW_PATTERN": "L"}, 0.98, "discard"),
        ({"MATRIX_LR": 0.08}, 0.94, "keep"),
        ({"DEPTH": 3}, 0.95, "discard"),
        ({"MATRIX_LR": 0.04}, 0.96, "discard"),
        ({"DEPTH": 6}, 0.90, "keep"),
    )
    digest = record(history)
    assert names(digest) == []
    assert "No measure" in diagnose(digest).text


# For each symptom, six or more proposals that show it.
STUCK: dict[str, list[tuple[dict[str, object], float | None, str]]] = {
    "repetition": [
        ({"DEPTH": 6}, 1.1, "discard"),
        ({"MATRIX_LR": 0.08}, 1.1, "discard"),
        ({"DEPTH": 6}, 1.1, "discard"),
        ({"MATRIX_LR": 0.08}, 1.1, "discard"),
    ],
    "fixation": [({"DEPTH": depth}, 1.1, "discard") for depth in (3, 5, 2, 6, 1)],
    "one_way": [
        ({"WEIGHT_DECAY": 0.2}, 1.1, "discard"),
        ({"WINDOW_PATTERN": "L"}, 1.1, "discard"),
        ({"WEIGHT_DECAY": 0.1}, 1.1, "discard"),
        ({"WEIGHT_DECAY": 0.0}, 1.1, "discard"),
    ],
    "uncovered": [({"DEPTH": 6 + n % 2, "MATRIX_LR": 0.08 + n / 100}, 1.1, "discard") for n in range(8)],
    "luck": [
        ({"DEPTH": 5}, 0.995, "keep"),
        ({"MATRIX_LR": 0.08}, 0.990, "keep"),
        ({"WINDOW_PATTERN": "L"}, 0.985, "keep"),
        ({"WEIGHT_DECAY": 0.0}, 0.980, "keep"),
    ],
    "drought": [
        ({"TOTAL_BATCH_SIZE": 2**15}, 0.9, "keep"),
        ({"DEPTH": 5}, 1.1, "discard"),
        ({"MATRIX_LR": 0.08}, 1.1, "discard"),
        ({"WINDOW_PATTERN": "L"}, 1.1, "discard"),
    ],
    "failures": [
        ({"DEPTH": 12}, None, "crash"),
        ({"MATRIX_LR": 0.08}, 1.1, "discard"),
        ({"DEPTH": 10}, None, "timeout"),
        ({"WINDOW_PATTERN": "L"}, 1.1, "discard"),
    ],
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_each_symptom_is_found_where_it_was_planted(name: str, record: Record, grow: Callable[..., History]) -> None:
    diagnosis = diagnose(record(grow(*STUCK[name])))
    found = {symptom.name: symptom for symptom in diagnosis.symptoms}
    assert name in found
    assert found[name].evidence in diagnosis.text
    assert found[name].value >= found[name].threshold
    assert 0 <= found[name].severity <= 1


def test_the_severest_symptom_comes_first(record: Record, recorded: History) -> None:
    symptoms = diagnose(record(recorded)).symptoms
    assert [s.severity for s in symptoms] == sorted((s.severity for s in symptoms), reverse=True)


def test_without_a_noise_floor_luck_is_not_diagnosed_and_drought_is_of_keeps(
    record: Record, grow: Callable[..., History]
) -> None:
    digest = record(replace(grow(*STUCK["luck"]), noise=None))
    assert digest.significant is None
    assert not {"luck", "drought"} & set(names(digest))
    assert "drought" in names(record(replace(grow(*STUCK["drought"]), noise=None)))

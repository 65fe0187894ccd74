"""What a study came to, from its rows."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from traces import summary
from traces.errors import LabError
from traces.store import Store

from .conftest import BEGUN, fill_study


def put_study(store: Store, study: str = "s", **columns: Any) -> None:
    usual = {"command": "run", "task": "t.toml", "config": {}, "seed": 1, "status": "done", "created": BEGUN}
    store.put("study", id=study, **(usual | columns))


def put_run(store: Store, run: str, scores: list[tuple[str, float | None]], study: str = "s", **columns: Any) -> None:
    usual = {
        "kind": "search", "arm": "level1", "seed": 1, "experiments": len(scores), "status": "done", "task": "t",
        "metric_source": "scorer", "tier": "none", "created": BEGUN,
    }  # fmt: skip
    store.put("run", id=run, study=study, **(usual | columns))
    for index, (status, score) in enumerate(scores):
        store.put("experiment", run=run, index=index, step="decided", status=status, score=score)


def confirm(store: Store, rows: list[tuple[str, int, float | None, float | None]], **columns: Any) -> None:
    put_run(store, "s.confirm", [], kind="confirm", arm="confirm", **columns)
    for index, (label, seed, score, sealed) in enumerate(rows, start=1):
        store.put(
            "experiment", run="s.confirm", index=index, step="decided", status="baseline", hypothesis=label, seed=seed,
            score=score, sealed_score=sealed,
        )  # fmt: skip


def test_a_confirmed_gain_compares_baseline_and_best_on_the_same_seed(store: Store) -> None:
    put_study(store)
    # In another order than the seeds, and with a drift between them that pairing takes out.
    confirm(store, [("best", 2, 2.9, 3.9), ("baseline", 1, 2.0, 3.0), ("best", 1, 1.9, 2.9), ("baseline", 2, 3.0, 4.0)])
    validation, sealed = summary.confirmed_gain(store, "s", 0.9)
    assert (validation.split, sealed.split, validation.n) == ("validation", "sealed", 2)
    assert validation.gain == pytest.approx(0.1) and sealed.gain == pytest.approx(0.1)
    assert validation.low == pytest.approx(0.1) and validation.high == pytest.approx(0.1)
    assert (validation.baseline, validation.best) == (pytest.approx(2.5), pytest.approx(2.4))


def test_a_seed_on_which_either_has_no_score_is_left_out(store: Store) -> None:
    put_study(store)
    confirm(
        store, [("baseline", 1, 2.0, None), ("best", 1, 1.9, None), ("baseline", 2, 3.0, None), ("best", 2, None, 1.0)]
    )
    (only,) = summary.confirmed_gain(store, "s", 0.9)
    assert (only.split, only.n, only.low, only.high) == ("validation", 1, None, None)


def test_a_gain_is_positive_where_a_metric_that_grows_grew(store: Store) -> None:
    put_study(store)
    put_run(store, "s.r1", [("baseline", 0.5), ("keep", 0.7), ("discard", 0.9)], direction="maximize")
    confirm(store, [("baseline", 1, 0.5, None), ("best", 1, 0.75, None)], direction="maximize")
    (run,) = (run for run in summary.runs(store, "s") if run["kind"] == "search")
    assert (run["best"], run["best_index"], run["gain"]) == (0.7, 1, pytest.approx(0.2))
    assert summary.confirmed_gain(store, "s", 0.9)[0].gain == pytest.approx(0.25)


def test_without_a_confirmation_there_is_no_confirmed_gain(store: Store) -> None:
    put_study(store)
    assert summary.confirmed_gain(store, "s", 0.9) == []


def test_the_best_is_a_kept_one_and_the_first_of_equals(store: Store) -> None:
    put_study(store)
    put_run(store, "s.r1", [("baseline", 2.0), ("discard", 1.0), ("keep", 1.8), ("crash", None), ("keep", 1.8)])
    (run,) = summary.runs(store, "s")
    assert (run["baseline"], run["best"], run["best_index"], run["gain"]) == (2.0, 1.8, 2, pytest.approx(0.2))
    assert (run["done"], run["scored"], run["keeps"]) == (5, 4, 2)


def test_a_run_that_has_not_begun_has_unknown_figures_and_the_same_keys(store: Store) -> None:
    put_study(store)
    put_run(store, "s.r1", [("baseline", 2.0), ("keep", 1.9)])
    put_run(store, "s.r2", [], experiments=5)
    begun, empty = summary.runs(store, "s")
    assert begun.keys() == empty.keys()
    assert (empty["done"], empty["planned"], empty["best"], empty["gain"]) == (0, 5, None, None)


def test_a_series_of_measurements_has_a_mean_and_no_best(store: Store) -> None:
    put_study(store)
    put_run(store, "s.noise", [("baseline", 1.0), ("baseline", 3.0)], kind="calibrate", arm="calibrate")
    (run,) = summary.runs(store, "s")
    assert (run["mean"], run["sd"], run["best"], run["stagnation"]) == (2.0, pytest.approx(2**0.5), None, None)


def test_a_study_counts_each_training_once_however_many_runs_inherit_it(filled: Store) -> None:
    (study,) = summary.studies(filled)
    trained = filled.rows("SELECT count(*) AS n FROM experiment WHERE NOT inherited")[0]["n"]
    assert study["experiments"] == trained
    assert study["run_count"] == filled.rows("SELECT count(*) AS n FROM run")[0]["n"]
    assert study["meta_iteration_count"] == filled.rows("SELECT count(*) AS n FROM meta_iteration")[0]["n"]


def test_the_last_study_is_shown_unless_another_is_named(store: Store) -> None:
    fill_study(store, "first", pairs=2, metas=1)
    put_study(store, "second", created=BEGUN + timedelta(days=1))
    assert summary.study(store)["id"] == "second"
    first = summary.study(store, "first")
    assert [turn["decision"] for turn in first["meta_iterations"]] == ["reject"]
    assert {run["id"].split("/")[0] for run in first["runs"]} == {"first"}


def test_what_is_not_there_is_named_with_what_is(store: Store) -> None:
    with pytest.raises(LabError, match=r"no study in"):
        summary.study(store)
    put_study(store)
    with pytest.raises(LabError, match=r"no study x .* there is s"):
        summary.study(store, "x")
    with pytest.raises(LabError, match=r"study s .* has no run yet"):
        summary.main_run(store)
    put_run(store, "s.r1", [("baseline", 2.0)])
    with pytest.raises(LabError, match=r"no run x .* there is s.r1"):
        summary.experiments(store, "x")
    with pytest.raises(LabError, match=r"no experiment 4 .* 0 to 0"):
        summary.experiment_diff(store, "s.r1", 4)


def test_the_main_run_is_the_best_of_level_1_or_where_the_outer_loop_ended(store: Store) -> None:
    put_study(store)
    put_run(store, "s.r1", [("baseline", 2.0), ("keep", 1.9)])
    put_run(store, "s.r2", [("baseline", 2.0), ("keep", 1.7)])
    put_run(store, "s.trial", [("baseline", 2.0), ("keep", 1.0)], arm="candidate")
    assert summary.main_run(store) == "s.r2"
    store.put("meta_iteration", study="s", index=0, step="decided", next_run="s.trial")
    store.put("meta_iteration", study="s", index=1, step="diagnosed")
    assert summary.main_run(store, "s") == "s.trial"


def test_who_writes_is_known_from_outside_also_after_a_kill(lab: Path, process: Any) -> None:
    assert summary.writer(lab) is None
    source = """
        import sys
        from pathlib import Path
        from traces.store import Store
        with Store.open(Path(sys.argv[1])):
            print("open", flush=True)
            sys.stdin.read()
    """
    holder = process(source, lab)
    assert holder.stdout.readline() == "open\n"
    assert summary.writer(lab) == holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert summary.writer(lab) is None

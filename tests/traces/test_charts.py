"""Pictures show what the record holds, whatever it holds."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import vl_convert

from traces.charts import curves, gains, running_best, save
from traces.errors import MachineError
from traces.store import Store

Chart = alt.TopLevelMixin


def words(chart: Chart) -> str:
    """The text that a reader sees."""
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    return " | ".join(re.findall(r"<t(?:ext|span)[^>]*>([^<]+)<", svg))


def layers(chart: Chart) -> dict[str, dict[str, Any]]:
    """The layers of a chart by their mark (`rule 2` if there are several)."""
    found: dict[str, dict[str, Any]] = {}
    for layer in chart.to_dict()["layer"]:
        mark = layer["mark"]["type"]
        found[mark if mark not in found else f"{mark} {len([k for k in found if k.startswith(mark)]) + 1}"] = layer
    return found


def rows_of(chart: Chart, mark: str | None) -> list[dict[str, Any]]:
    """The data of a layer, or of a chart without layers."""
    specification = chart.to_dict()
    name = (layers(chart)[mark] if mark else specification)["data"]["name"]
    values: list[dict[str, Any]] = specification["datasets"][name]
    return values


def domain(chart: Chart) -> list[float]:
    ends: list[float] = layers(chart)["line"]["encoding"]["y"]["scale"]["domain"]
    return ends


def put_run(store: Store, scores: list[tuple[str, float | None]], **run: Any) -> None:
    store.put("study", id="s", command="run", task="t.toml", config={}, seed=1, status="done", created="2026-03-01")
    columns = {"kind": "search", "arm": "level1", "metric_source": "scorer"} | run
    store.put(
        "run", id="r", study="s", seed=1, experiments=9, status="done", task="t", tier="none", created="2026-03-01",
        **columns,
    )  # fmt: skip
    for index, (status, score) in enumerate(scores):
        store.put("experiment", run="r", index=index, step="decided", status=status, score=score)


def test_a_saved_chart_is_a_png_with_its_svg_and_its_specification(filled: Store, tmp_path: Path) -> None:
    save(running_best(filled, "evolve-1"), tmp_path / "new" / "best.png")
    png = (tmp_path / "new" / "best.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG\r\n")
    assert 1200 < width < 2400
    assert 600 < height < 1600
    assert "Best val_bpb so far" in (tmp_path / "new" / "best.svg").read_text()
    assert "vega-lite" in json.loads((tmp_path / "new" / "best.json").read_text())["$schema"]


def test_a_folder_that_cannot_be_made_is_one_line(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="drawing failed"):
        save(gains(filled, "evolve-1"), tmp_path / "file" / "gains.png")


def test_the_running_best_is_the_best_kept_score_of_each_run(filled: Store) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows_of(running_best(filled, "evolve-1"), "line"):
        lines.setdefault(row["run"], []).append((row["index"], row["score"]))
    assert set(lines) == {row["id"] for row in filled.rows("SELECT id FROM run WHERE kind = 'search'")}
    for run, line in lines.items():
        scores = filled.rows("SELECT index, score, status FROM experiment WHERE run = ?", run)
        for index, best in line:
            assert best == min(
                r["score"] for r in scores if r["index"] <= index and r["status"] in ("baseline", "keep")
            )


def test_an_inherited_experiment_is_drawn_once(filled: Store) -> None:
    chart = running_best(filled, "evolve-1")
    (own,) = filled.rows(
        "SELECT count(*) AS n FROM experiment e JOIN run r ON r.id = e.run WHERE kind = 'search' AND NOT e.inherited"
    )
    assert len(rows_of(chart, "point")) == own["n"]
    assert min(row["index"] for row in rows_of(chart, "line") if row["run"] != "evolve-1/level1") == 11


def test_the_band_is_two_noise_floors_around_the_calibrated_mean(filled: Store) -> None:
    (band,) = rows_of(running_best(filled, "evolve-1"), "rect")
    (mean,) = filled.rows("SELECT avg(score) AS mean FROM experiment WHERE run = 'evolve-1/noise'")
    assert (band["score"], band["high"]) == pytest.approx((mean["mean"] - 0.008, mean["mean"] + 0.008))
    assert "mean ± 2 standard deviations over 5 seeds" in words(running_best(filled, "evolve-1"))


def test_every_outcome_and_arm_that_occurs_is_in_the_legend(filled: Store) -> None:
    seen = words(running_best(filled, "evolve-1"))
    for word in ("level 1", "incumbent", "candidate", "kept", "discarded", "no score", "experiment", "lower is better"):
        assert f"{word} |" in seen or f": {word}" in seen or seen.endswith(word), word
    assert "self-reported" not in seen
    assert "stand-in" not in seen


def test_one_diverged_training_does_not_flatten_the_rest(store: Store) -> None:
    put_run(store, [("baseline", 1.0), *[("discard", 1.01)] * 12, ("keep", 0.99), ("discard", 50.0), ("crash", None)])
    chart = running_best(store, "s")
    low, high = domain(chart)
    assert high - low < 0.1
    points = {row["outcome"]: row["score"] for row in rows_of(chart, "point")}
    assert points["discarded"] < points["discarded, beyond the scale"] < points["no score"] < high


def test_a_metric_to_maximize_is_drawn_the_other_way_round(store: Store) -> None:
    put_run(
        store,
        [("baseline", 0.5), ("discard", 0.4), ("keep", 0.6), ("crash", None)],
        direction="maximize",
        metric="accuracy",
    )
    chart = running_best(store, "s")
    assert [row["score"] for row in rows_of(chart, "line")] == [0.5, 0.5, 0.6, 0.6]
    points = {row["outcome"]: row["score"] for row in rows_of(chart, "point")}
    low, high = domain(chart)
    assert low < points["no score"] < 0.4 < 0.6 < high
    assert "accuracy: higher is better" in words(chart)


def test_figures_of_doubtful_origin_say_so(store: Store) -> None:
    put_run(store, [("baseline", 1.0)], metric_source="stdout", model_is_stand_in=True)
    seen = words(running_best(store, "s"))
    assert "val_bpb (self-reported)" in seen
    assert "a stand-in for a language model" in seen


def test_gains_are_those_of_the_record(filled: Store) -> None:
    chart = gains(filled, "evolve-1")
    recorded = filled.rows("SELECT gain, low, high FROM meta_iteration WHERE gain IS NOT NULL ORDER BY index")
    assert [{k: row[k] for k in ("gain", "low", "high")} for row in rows_of(chart, "point")] == recorded
    left, right = layers(chart)["point"]["encoding"]["x"]["scale"]["domain"]
    assert left == -right
    assert all(left < row["low"] and row["high"] < right for row in recorded)
    seen = words(chart)
    assert "positive: the candidate is better" in seen
    assert "90 % interval of 3 pairs" in seen
    assert "4 · annealed acceptance" in seen
    assert [row["decision"] for row in rows_of(chart, "text")] == ["inert"]


def test_a_gain_without_an_interval_is_drawn(store: Store) -> None:
    store.put("meta_iteration", study="s", index=0, step="decided", decision="indecisive", gain=0.01, pairs=1)
    store.put("meta_iteration", study="s", index=1, step="decided", decision="invalid")
    assert "mean, without an interval, of 1 pair, each" in words(gains(store, "s"))
    assert rows_of(gains(store, "s"), "rule 2") == []


def test_curves_are_those_of_the_baseline_and_the_best(filled: Store) -> None:
    values = rows_of(curves(filled, "evolve-1/level1"), None)
    (best,) = filled.rows(
        "SELECT arg_min(index, score) AS i FROM experiment WHERE run = 'evolve-1/level1' AND status <> 'discard'"
    )
    assert {row["experiment"] for row in values} == {0, best["i"]}
    assert len(values) == 2 * 21
    assert f"best (experiment {best['i']})" in words(curves(filled, "evolve-1/level1"))


@pytest.mark.parametrize("draw", [running_best, gains, curves])
def test_nothing_to_draw_is_said_in_words(store: Store, draw: Callable[[Store, str], Chart]) -> None:
    assert "yet" in words(draw(store, "nobody's"))
    put_run(store, [("crash", None), ("timeout", None)])
    store.put("meta_iteration", study="s", index=0, step="diagnosed")
    assert "yet" in words(draw(store, "s" if draw is not curves else "r"))


@pytest.mark.parametrize("draw", [running_best, gains])
def test_a_single_result_is_drawn(store: Store, draw: Callable[[Store, str], Chart]) -> None:
    put_run(store, [("baseline", 1.0)])
    store.put("meta_iteration", study="s", index=0, step="decided", decision="reject", gain=0.0, low=0.0, high=0.0)
    assert "Study s" in words(draw(store, "s"))

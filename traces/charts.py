"""Pictures of a study: what its runs found, what its meta-iterations gained, how two experiments trained.

Each takes what it shows from the record by SQL, explains itself in its title, and tells its series apart by shape or
dash as well as by colour, so that it can be read in grey and by the colour-blind.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import altair as alt

from traces.disk import in_one_line
from traces.store import Reader

INK, GREY, PALE = "#222222", "#767676", "#e4e4e4"
BLUE, VERMILION, GREEN = "#0072b2", "#d55e00", "#009e73"  # apart for every kind of colour vision (Okabe and Ito, 2008)

_ARMS = {"level1": "level 1", "incumbent": "incumbent", "candidate": "candidate"}
_OUTCOMES = ["kept", "discarded", "discarded, beyond the scale", "no score"]
_DECISIONS = {"adopt": BLUE, "reject": VERMILION, "indecisive": GREY, "inert": GREY, "invalid": GREY}
_WIDTH = 640


def running_best(reader: Reader, study: str) -> alt.TopLevelMixin:
    """The best score so far of every search of a study, over the scatter of the unchanged surface.

    A run that goes on from another's frozen state is drawn from there on.
    """
    rows = reader.rows(
        """
        SELECT e.run, coalesce(r.arm, 'search') AS arm, e.index, e.status, e.score, e.inherited, r.metric, r.direction,
               r.metric_source <> 'scorer' AS self_reported, coalesce(r.model_is_stand_in, FALSE) AS stand_in,
               CASE r.direction WHEN 'maximize' THEN max(e.score) FILTER (e.status IN ('baseline', 'keep')) OVER past
                                ELSE min(e.score) FILTER (e.status IN ('baseline', 'keep')) OVER past END AS best,
               e.index >= coalesce(r.forked_at, 0) - 1 AS drawn
        FROM experiment e JOIN run r ON r.id = e.run
        WHERE r.study = ? AND r.kind = 'search' AND e.status IS NOT NULL
        WINDOW past AS (PARTITION BY e.run ORDER BY e.index)
        ORDER BY r.created, e.run, e.index
        """,
        study,
    )
    lines = [row for row in rows if row["drawn"] and row["best"] is not None]
    if not lines:
        return _nothing(f"No search of study {study} has a score yet")
    first, about = rows[0], _study(reader, study)
    metric, lower = first["metric"], first["direction"] != "maximize"
    centre, noise = _baseline(reader, study, rows), about["noise"]

    # Scores four times as far from the best as three quarters of them are cut off: one diverged training must not
    # flatten the rest.
    sign = 1.0 if lower else -1.0
    scores = sorted(sign * row["score"] for row in rows if row["score"] is not None)
    limit = scores[0] + 4 * (scores[int(0.75 * (len(scores) - 1))] - scores[0])
    good = min(scores[0], sign * centre - 2 * (noise or 0))
    bad = max(*(score for score in scores if score <= limit), sign * centre + 2 * (noise or 0))
    margin = 0.05 * (bad - good) or 0.01
    end = bad + margin
    points = [_point(row, sign, end, margin) for row in rows if not row["inherited"]]
    domain = sorted([sign * (good - margin), sign * (end + 2 * margin)])

    y_title = (
        f"{metric}{' (self-reported)' if first['self_reported'] else ''}: {'lower' if lower else 'higher'} is better"
    )
    y = alt.Y("score:Q", title=y_title, scale=alt.Scale(domain=domain, nice=False, zero=False))
    x = alt.X("index:Q", title="experiment", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False, padding=8))
    arms = list(dict.fromkeys(_arm(row) for row in lines))
    layers: list[alt.Chart] = []
    if noise is not None:
        band = {"score": centre - 2 * noise, "high": centre + 2 * noise}
        layers.append(alt.Chart(_data([band])).mark_rect(color=PALE).encode(y=y, y2="high:Q"))
    layers.append(alt.Chart(_data([{"score": centre}])).mark_rule(color=GREY, strokeDash=[2, 3]).encode(y=y))
    layers.append(
        alt.Chart(_data([row | {"score": row["best"], "arm": _arm(row)} for row in lines]))
        .mark_line(interpolate="step-after", strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            detail="run:N",
            color=alt.Color("arm:N", title="best so far", scale=_arm_scale(arms, [INK, BLUE, VERMILION, GREEN])),
            strokeDash=alt.StrokeDash(
                "arm:N", title="best so far", scale=_arm_scale(arms, [[1, 0], [6, 3], [1, 0], [2, 2]])
            ),
        )
    )
    shown = [name for name in _OUTCOMES if any(point["outcome"] == name for point in points)]
    layers.append(
        alt.Chart(_data(points))
        .mark_point(size=38, strokeWidth=1.2, opacity=1)
        .encode(
            x=x,
            y=y,
            shape=alt.Shape("outcome:N", **_outcomes(shown, ["circle", "circle", "triangle-up", "cross"])),
            fill=alt.Fill("outcome:N", **_outcomes(shown, [INK, "white", "white", GREY])),
            stroke=alt.Stroke("outcome:N", **_outcomes(shown, [INK, GREY, GREY, GREY])),
        )
    )
    runs = len({row["run"] for row in rows})
    trained = sum(not row["inherited"] for row in rows)
    subtitle = [f"Study {study} (seed {about['seed']}): {trained} experiments in {runs} run{'s' if runs > 1 else ''}."]
    subtitle.append(
        "Dotted line: the unchanged surface."
        if noise is None
        else f"Grey: the unchanged surface, mean ± 2 standard deviations over {about['noise_n']} seeds."
    )
    if first["stand_in"]:
        subtitle.append("Proposals come from a stand-in for a language model.")
    return _dressed(alt.layer(*layers).properties(width=_WIDTH, height=360), f"Best {metric} so far", subtitle)


def gains(reader: Reader, study: str) -> alt.TopLevelMixin:
    """What each meta-iteration of a study gained, with its interval and its decision."""
    rows = reader.rows(
        """
        SELECT index, coalesce(mechanism, 'no mechanism') AS mechanism, decision, gain, low, high, confidence, pairs,
               detectable,
               coalesce((SELECT any_value(metric) FROM run WHERE study = meta_iteration.study), 'metric') AS metric
        FROM meta_iteration WHERE study = ? AND decision IS NOT NULL ORDER BY index
        """,
        study,
    )
    if not rows:
        return _nothing(f"No meta-iteration of study {study} is decided yet")
    for row in rows:
        row["label"] = f"{row['index']} · {row['mechanism']}"
        row["end"] = row["detectable"] and -row["detectable"]
    metric, confidence = rows[0]["metric"], rows[0]["confidence"]
    ends = [abs(row[name]) for row in rows for name in ("gain", "low", "high") if row[name] is not None]
    reach = 1.08 * max(ends, default=0.0) or 0.01
    title = f"gain in {metric}: right of 0, the candidate found better surfaces than the incumbent"
    x = alt.X("gain:Q", title=title, scale=alt.Scale(domain=[-reach, reach], nice=False), axis=alt.Axis(tickCount=8))
    y = alt.Y("label:N", title="meta-iteration", sort=[row["label"] for row in rows], axis=alt.Axis(labelLimit=260))
    scale = alt.Scale(domain=list(_DECISIONS), range=list(_DECISIONS.values()))
    shapes = alt.Scale(domain=list(_DECISIONS), range=["circle", "cross", "diamond", "square", "triangle-down"])
    legend = alt.Legend(values=[name for name in _DECISIONS if any(row["decision"] == name for row in rows)])
    colour = alt.Color("decision:N", title="decision", scale=scale, legend=legend)
    measured = [row for row in rows if row["gain"] is not None]
    layers = [
        alt.Chart(_data([row for row in measured if row["detectable"] is not None]))
        .mark_bar(color=PALE, height=16, clip=True)
        .encode(x=alt.X("detectable:Q", title=title), x2="end:Q", y=y),
        alt.Chart(_data([{"gain": 0}])).mark_rule(color=INK).encode(x=x),
        alt.Chart(_data([row for row in measured if row["low"] is not None]))
        .mark_rule(strokeWidth=2, clip=True)
        .encode(x=alt.X("low:Q", title=title), x2="high:Q", y=y, color=colour),
        alt.Chart(_data(measured))
        .mark_point(size=110, filled=True, opacity=1)
        .encode(x=x, y=y, color=colour, shape=alt.Shape("decision:N", title="decision", scale=shapes, legend=legend)),
        alt.Chart(_data([row | {"gain": 0} for row in rows if row["gain"] is None]))
        .mark_text(color=GREY, align="left", dx=8)
        .encode(x=x, y=y, text="decision:N"),
    ]
    pairs = sorted({row["pairs"] for row in measured if row["pairs"]}) or [0]
    counted = " to ".join(dict.fromkeys([str(pairs[0]), str(pairs[-1])])) + (" pair" if pairs == [1] else " pairs")
    what = f"mean and {100 * (confidence or 0.95):g} % interval" if pairs[-1] > 1 else "mean, without an interval,"
    subtitle = [f"Study {study}: {what} of {counted}, each of one seed."]
    if any(row["detectable"] is not None for row in measured):
        subtitle.append("A true gain inside a grey bar is missed by so few pairs more than once in five times.")
    chart = alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(34))
    return _dressed(chart, "Gain of each meta-iteration (positive: the candidate is better)", subtitle)


def curves(reader: Reader, run: str) -> alt.TopLevelMixin:
    """The training curves of a run's baseline and of its best experiment, as they reported them."""
    rows = reader.rows(
        """
        WITH kept AS (
            SELECT e.index, e.status, CASE r.direction WHEN 'maximize' THEN -e.score ELSE e.score END AS cost
            FROM experiment e JOIN run r ON r.id = e.run
            WHERE e.run = ? AND e.status IN ('baseline', 'keep') AND e.score IS NOT NULL
        ), shown AS (
            SELECT DISTINCT ON (index) index FROM (
                (FROM kept ORDER BY index LIMIT 1) UNION ALL (FROM kept ORDER BY cost, index LIMIT 1)
            )
        )
        SELECT c.experiment, 100 * c.progress AS progress, c.loss
        FROM curve c JOIN shown ON shown.index = c.experiment
        WHERE c.run = ? AND isfinite(c.loss) ORDER BY c.experiment, c.step
        """,
        run,
        run,
    )
    if not rows:
        return _nothing(f"No experiment of run {run} has a training curve yet")
    names = {
        index: "baseline" if index == 0 else f"best (experiment {index})" for index in (r["experiment"] for r in rows)
    }
    for row in rows:
        row["name"] = names[row["experiment"]]
    order = list(names.values())
    chart = (
        alt.Chart(_data(rows))
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X("progress:Q", title="share of the training budget, %", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("loss:Q", title="training loss, nats a token (self-reported)", scale=alt.Scale(zero=False)),
            color=alt.Color("name:N", title=None, scale=alt.Scale(domain=order, range=[INK, BLUE][: len(order)])),
            strokeDash=alt.StrokeDash(
                "name:N", title=None, scale=alt.Scale(domain=order, range=[[5, 3], [1, 0]][: len(order)])
            ),
        )
    )
    return _dressed(
        chart.properties(width=_WIDTH, height=300), "How the baseline and the best trained", [f"Run {run}."]
    )


def save(chart: alt.TopLevelMixin, path: Path) -> None:
    """Writes a chart as `path` (PNG), and beside it as SVG and as the Vega-Lite that it is made of.

    Raises:
        MachineError: the disk is full, or the folder may not be written to.
    """
    with in_one_line(path.parent, "drawing"):
        path.parent.mkdir(parents=True, exist_ok=True)
        chart.save(path.with_suffix(".json"))
        chart.save(path.with_suffix(".svg"))
        chart.save(path.with_suffix(".png"), scale_factor=2)


def _point(row: dict[str, Any], sign: float, end: float, margin: float) -> dict[str, Any]:
    """Where an experiment is drawn: beyond the end of the axis if its score is, in a lane of its own if it has none."""
    if row["score"] is None or row["status"] not in ("baseline", "keep", "discard"):
        return {"index": row["index"], "score": sign * (end + 1.5 * margin), "outcome": "no score"}
    outcome = "discarded" if row["status"] == "discard" else "kept"
    if sign * row["score"] > end:
        return {"index": row["index"], "score": sign * end, "outcome": "discarded, beyond the scale"}
    return {"index": row["index"], "score": row["score"], "outcome": outcome}


def _study(reader: Reader, study: str) -> dict[str, Any]:
    found = reader.rows("SELECT seed, noise, noise_n FROM study WHERE id = ?", study)
    return found[0] if found else {"seed": None, "noise": None, "noise_n": None}


def _baseline(reader: Reader, study: str, rows: list[dict[str, Any]]) -> float:
    """The mean score of the unchanged surface: over the seeds of the calibration, else over the runs' own baselines."""
    measured = reader.rows(
        "SELECT e.score FROM experiment e JOIN run r ON r.id = e.run "
        "WHERE r.study = ? AND r.kind = 'calibrate' AND e.score IS NOT NULL",
        study,
    )
    own = [row for row in rows if row["index"] == 0 and row["score"] is not None]
    return statistics.fmean(row["score"] for row in measured or own or [r for r in rows if r["score"] is not None])


def _outcomes(shown: list[str], values: list[str]) -> dict[str, Any]:
    """A scale over the outcomes, with a legend of those that occur."""
    return {
        "title": "experiment",
        "scale": alt.Scale(domain=_OUTCOMES, range=values),
        "legend": alt.Legend(values=shown),
    }


def _arm(row: dict[str, Any]) -> str:
    return _ARMS.get(row["arm"]) or str(row["arm"])


def _arm_scale(arms: list[str], values: list[Any]) -> alt.Scale:
    known = [arm for arm in _ARMS.values() if arm in arms]
    order = [*known, *(arm for arm in arms if arm not in known)]
    return alt.Scale(domain=order, range=[values[i % len(values)] for i in range(len(order))])


def _data(rows: list[dict[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=rows)


def _nothing(text: str) -> alt.TopLevelMixin:
    mark = alt.Chart(_data([{}])).mark_text(fontSize=14, color=GREY).encode(text=alt.value(text))
    return _dressed(mark.properties(width=_WIDTH, height=80), "", [])


def _dressed(chart: alt.Chart | alt.LayerChart | alt.FacetChart, title: str, subtitle: list[str]) -> alt.TopLevelMixin:
    dressed: alt.TopLevelMixin = (
        chart.properties(title=alt.Title(title, subtitle=subtitle, anchor="start", offset=14))
        .configure_view(stroke=None)
        .configure_title(fontSize=16, subtitleFontSize=12, subtitleColor=GREY, subtitlePadding=5, color=INK)
        .configure_axis(
            labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#eeeeee", titlePadding=10
        )
        .configure_legend(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", labelLimit=260)
    )
    return dressed

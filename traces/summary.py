"""What a study, a run, an experiment came to: the rows of the record added up, as plain data for tables and for JSON.

Keys are stable: a figure that is not known is `None`, never left out. Gains are positive where the metric got better.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traces.errors import LabError
from traces.stagnation import MEASURES
from traces.store import LOCK, Reader

Row = dict[str, Any]


@dataclass(frozen=True)
class ConfirmedGain:
    """By how much the best is better than the baseline, on seeds that nothing was chosen by.

    Attributes:
        split: `validation` or `sealed`.
        gain: mean difference over the seeds.
        low: lower end of its interval, `None` with fewer than two seeds.
        high: upper end.
        confidence: of the interval.
        n: seeds on which both have a score.
        baseline: mean score of the baseline on them.
        best: mean score of the best.
    """

    split: str
    gain: float
    low: float | None
    high: float | None
    confidence: float
    n: int
    baseline: float
    best: float


def confirmed_gain(reader: Reader, study: str, confidence: float) -> list[ConfirmedGain]:
    """The gain of a study by its confirmation: one for each split that was scored, none before it was made.

    Baseline and best are compared in pairs, seed by seed; a seed on which either has no score is left out.
    """
    rows = reader.rows(
        "SELECT experiment.seed, hypothesis, score, sealed_score, direction "
        "FROM experiment JOIN run ON run.id = experiment.run WHERE run.id = ? AND step = 'decided' ORDER BY index",
        f"{study}.confirm",
    )
    if not rows:
        return []
    from traces.stats import gain  # here, since scipy takes longer to load than all else that a reader needs

    gains = []
    for split, column in (("validation", "score"), ("sealed", "sealed_score")):
        scores: dict[str, dict[int, float]] = {"baseline": {}, "best": {}}
        for row in rows:
            if row["hypothesis"] in scores and row[column] is not None:
                scores[row["hypothesis"]][row["seed"]] = row[column]
        seeds = scores["baseline"].keys() & scores["best"].keys()
        if not seeds:
            continue
        baseline, best = ([scores[label][seed] for seed in sorted(seeds)] for label in ("baseline", "best"))
        found = gain(baseline, best, confidence, rows[0]["direction"])
        low, high = (end if math.isfinite(end) else None for end in (found.low, found.high))
        means = statistics.fmean(baseline), statistics.fmean(best)
        gains.append(ConfirmedGain(split, found.mean, low, high, confidence, len(seeds), *means))
    return gains


def studies(reader: Reader, id: str | None = None) -> list[Row]:
    """Every study, or the one of that name, the oldest first, with what its runs add up to."""
    rows = reader.rows(
        """
        SELECT s.id, s.command, s.status, s.task, s.seed, s.tier, s.noise, s.noise_n, s.config, s.machine, s.created,
               s.finished, any_value(r.model) AS model, any_value(r.task) AS task_name,
               coalesce(bool_or(r.model_is_stand_in), false) AS model_is_stand_in,
               coalesce(bool_or(r.metric_source <> 'scorer'), false) AS self_reported,
               count(DISTINCT r.id) AS run_count,
               coalesce(sum(e.experiments), 0)::BIGINT AS experiments,
               coalesce(sum(i.events), 0)::BIGINT AS integrity_events,
               (SELECT count(*) FROM meta_iteration m WHERE m.study = s.id) AS meta_iteration_count
        FROM study s
        LEFT JOIN run r ON r.study = s.id
        LEFT JOIN (SELECT run, count(*) AS experiments FROM experiment
                   WHERE step = 'decided' AND NOT inherited GROUP BY run) e ON e.run = r.id
        LEFT JOIN (SELECT run, count(*) AS events FROM integrity_event GROUP BY run) i ON i.run = r.id
        WHERE $1 IS NULL OR s.id = $1
        GROUP BY ALL ORDER BY s.created, s.id
        """,
        id,
    )
    return [row | {"confirmed": _confirmed(reader, row)} for row in rows]


def _confirmed(reader: Reader, study: Row) -> list[Row]:
    confidence = (study["config"] or {}).get("confidence", 0.9)
    return [asdict(gain) for gain in confirmed_gain(reader, study["id"], confidence)]


def study(reader: Reader, id: str | None = None) -> Row:
    """One study, by default the last, with its runs and its meta-iterations.

    Raises:
        LabError: there is no such study, or none at all.
    """
    if id is None:
        id = last_study(reader)
    found = studies(reader, id)
    if not found:
        ids = [str(row["id"]) for row in reader.rows("SELECT id FROM study ORDER BY created DESC, id")]
        raise LabError(f"no study {id} in {reader.lab}: there is {_listed(ids)}")
    return found[0] | {"runs": runs(reader, id), "meta_iterations": meta_iterations(reader, id)}


def last_study(reader: Reader) -> str:
    """The study that was begun last. Raises `LabError` if there is none."""
    found = reader.rows("SELECT id FROM study ORDER BY created DESC, id DESC LIMIT 1")
    if not found:
        raise LabError(f"no study in {reader.lab} yet: `bilevel run` or `bilevel demo` makes one")
    return str(found[0]["id"])


def runs(reader: Reader, study: str) -> list[Row]:
    """The runs of a study, the oldest first.

    Each has its columns and: `done`, the decided experiments; `scored`, those of them with a score; `baseline`; `best`,
    the best score that was kept, with its `best_index`; `gain`; `keeps`; `significant_keeps`; `stagnation`, the
    measures of `traces.stagnation` by name; `integrity_events`. Of a series of measurements, `mean` and `sd`.
    """
    rows = reader.rows(
        """
        WITH seen AS (
            SELECT e.*, e.status IN ('baseline', 'keep') AS kept,
                   row(CASE WHEN r.direction = 'maximize' THEN -e.score ELSE e.score END, e.index) AS place
            FROM experiment e JOIN run r ON r.id = e.run WHERE r.study = $1 AND e.step = 'decided'
        )
        SELECT r.id, r.kind, r.arm, r.status, r.seed, r.experiments AS planned, r.forked_from, r.forked_at, r.strategy,
               s.mechanisms, s.origin AS strategy_origin, r.task, r.metric_source <> 'scorer' AS self_reported,
               r.direction, r.model, coalesce(r.model_is_stand_in, false) AS model_is_stand_in, r.tier, r.repository,
               r.created, r.finished,
               count(e.index) AS done,
               count(e.score) AS scored,
               any_value(e.score) FILTER (e.index = 0) AS baseline,
               arg_min(e.score, e.place) FILTER (e.kept AND e.score IS NOT NULL) AS best,
               arg_min(e.index, e.place) FILTER (e.kept AND e.score IS NOT NULL) AS best_index,
               count(*) FILTER (e.status = 'keep') AS keeps,
               count(*) FILTER (e.status = 'keep' AND e.significant) AS significant_keeps,
               avg(e.score) AS mean,
               stddev_samp(e.score) AS sd,
               (SELECT count(*) FROM integrity_event i WHERE i.run = r.id) AS integrity_events
        FROM run r
        LEFT JOIN seen e ON e.run = r.id
        LEFT JOIN strategy s ON s.hash = r.strategy
        WHERE r.study = $1
        GROUP BY ALL ORDER BY r.created, r.id
        """,
        study,
    )
    stuck = _stagnation(reader, study)
    for row in rows:
        search = row["kind"] == "search"
        if not search:
            row |= dict.fromkeys(("baseline", "best", "best_index", "keeps", "significant_keeps"))
        else:
            row |= {"mean": None, "sd": None}
        known = row["baseline"] is not None and row["best"] is not None
        gain = row["baseline"] - row["best"] if known else None
        row["gain"] = -gain if gain is not None and row["direction"] == "maximize" else gain
        row["stagnation"] = {name: stuck[name].get(row["id"]) for name in MEASURES} if search else None
    return rows


def _stagnation(reader: Reader, study: str) -> dict[str, dict[str, float]]:
    """Each measure, by run."""
    ids = "SELECT id FROM run WHERE study = ? AND kind = 'search'"
    return {
        name: {
            row["run"]: row["value"]
            for row in reader.rows(f"SELECT run, value FROM ({measure.sql}) WHERE run IN ({ids})", study)  # noqa: S608
        }
        for name, measure in MEASURES.items()
    }


def meta_iterations(reader: Reader, study: str) -> list[Row]:
    """The turns of the outer loop, in their order; `pairs` are the usable ones."""
    return reader.rows(
        "SELECT index, step, mechanism, diagnosis, rationale, decision, reason, gain, low, high, confidence, pairs, "
        "detectable, calls_differing, calls_compared, incumbent, candidate, frozen_run, frozen_at, next_run, next_at, "
        "created, finished FROM meta_iteration WHERE study = ? ORDER BY index",
        study,
    )


def main_run(reader: Reader, study: str | None = None) -> str:
    """The run to look at first: where the outer loop of a study (by default the last) ended, or its best at level 1.

    Raises:
        LabError: there is no such study, or it has no run yet.
    """
    study = study or last_study(reader)
    ended = reader.rows(
        "SELECT next_run FROM meta_iteration WHERE study = ? AND next_run IS NOT NULL ORDER BY index DESC LIMIT 1",
        study,
    )
    if ended:
        return str(ended[0]["next_run"])
    made = runs(reader, study)
    if not made:
        raise LabError(f"study {study} in {reader.lab} has no run yet: wait for it, or go on with `bilevel resume`")
    level1 = [row for row in made if row["kind"] == "search" and row["arm"] == "level1"] or made
    return str(max(level1, key=lambda row: -1.0 if row["gain"] is None else row["gain"])["id"])


def experiments(reader: Reader, run: str) -> list[Row]:
    """The experiments of a run, in their order, those that have begun and are not decided counted in.

    Raises:
        LabError: there is no such run.
    """
    need_run(reader, run)
    return reader.rows(
        "SELECT e.*, r.metric_source <> 'scorer' AS self_reported FROM experiment e JOIN run r ON r.id = e.run "
        "WHERE e.run = ? ORDER BY e.index",
        run,
    )


def experiment_diff(reader: Reader, run: str, index: int) -> str:
    """The unified diff of an experiment against its parent; empty for the baseline.

    Raises:
        LabError: there is no such run or experiment.
    """
    need_run(reader, run)
    found = reader.rows("SELECT diff FROM experiment WHERE run = ? AND index = ?", run, index)
    if not found:
        last = reader.rows("SELECT min(index) AS low, max(index) AS high FROM experiment WHERE run = ?", run)[0]
        have = "none yet" if last["high"] is None else f"{last['low']} to {last['high']}"
        raise LabError(f"no experiment {index} in run {run} of {reader.lab}: it has {have}")
    return reader.get_text(found[0]["diff"]) if found[0]["diff"] else ""


def need_run(reader: Reader, run: str) -> None:
    """Raises `LabError` if there is no such run."""
    if not reader.rows("SELECT 1 FROM run WHERE id = ?", run):
        ids = [str(row["id"]) for row in reader.rows("SELECT id FROM run ORDER BY created DESC, id LIMIT 9")]
        raise LabError(f"no run {run} in {reader.lab}: there is {_listed(ids)}")


def writer(lab: Path) -> int | None:
    """The process that is writing to a laboratory, if any, without getting into its way."""
    try:
        lock = lab / LOCK
        inode, pid = str(lock.stat().st_ino), lock.read_text().strip()
        # 1: FLOCK ADVISORY WRITE <pid> <major>:<minor>:<inode> 0 EOF
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    locked = ((words[4], words[5].rpartition(":")[2]) for words in held if words[1] == "FLOCK")
    return int(pid) if (pid, inode) in locked else None


def _listed(names: Sequence[str], most: int = 8) -> str:
    return (", ".join(names[:most]) + (", ..." if len(names) > most else "")) or "none yet"

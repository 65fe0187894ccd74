"""Experiments as rows of the record, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inner.corpus import Corpus
from inner.executor import Executor
from inner.history import Experiment, History, experiment_from, to_json
from inner.model import Model
from inner.task import Task
from inner.trial import Outcome
from traces.store import Reader, Store

Report = Callable[[str, dict[str, Any]], None]
"""Told of everything that a person may want to watch: what happened, and its facts."""


@dataclass(frozen=True)
class Bench:
    """What the runs of one study share.

    Attributes:
        folder: of the laboratory.
        corpus: `None` for a task whose metric is self-reported.
        program: what the human tells the inner agent; it lies beside the surface in each repository.
        report: called from several threads.
    """

    store: Store
    folder: Path
    study: str
    task: Task
    corpus: Corpus | None
    executor: Executor
    model: Model
    program: str
    report: Report

    @property
    def noise(self) -> float | None:
        """The noise floor of the study, `None` until it is measured."""
        value = self.store.rows("SELECT noise FROM study WHERE id = ?", self.study)[0]["noise"]
        return None if value is None else float(value)

    def repository(self, run: str) -> Path:
        """Where the run's git repository lies."""
        return self.folder / "runs" / run

    def open_run(self, run: str, **columns: Any) -> None:
        """Writes the row of a run that begins, or goes on."""
        begun = self.store.rows("SELECT created FROM run WHERE id = ?", run)
        self.store.put(
            "run",
            id=run,
            study=self.study,
            status="running",
            task=self.task.name,
            metric=self.task.metric.name,
            direction=self.task.metric.direction,
            metric_source=self.task.metric.source,
            tier=self.executor.tier,
            repository=f"runs/{run}",
            hashes={"task": self.task.hash, "corpus": None if self.corpus is None else self.corpus.hash},
            created=begun[0]["created"] if begun else now(),
            **columns,
        )

    def created(self, run: str) -> datetime:
        """When a run that has been opened was opened first."""
        found: datetime = self.store.rows("SELECT created FROM run WHERE id = ?", run)[0]["created"]
        return found

    def close_run(self, run: str, status: str = "done") -> None:
        """Writes that a run has ended."""
        self.store.put("run", id=run, status=status, finished=now())
        self.store.publish()


def now() -> datetime:
    """The time in UTC, as the record keeps it."""
    return datetime.now(UTC).replace(tzinfo=None)


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed of its own for a part of a study: the same for the same names, below 2^31."""
    words = ":".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big") >> 1


def put_strategy(store: Store, source: str, origin: str, mechanisms: Sequence[str], commit: str | None = None) -> str:
    """Writes a strategy once, and gives its hash, which is that of its source."""
    hash = store.text(source)
    if not store.rows("SELECT hash FROM strategy WHERE hash = ?", hash):
        row = {"hash": hash, "source": hash, "origin": origin, "mechanisms": list(mechanisms), "created": now()}
        store.put("strategy", **row)
    if commit is not None:
        store.put("strategy", hash=hash, commit=commit)
    return hash


def row_of(store: Store | Reader, run: str, index: int) -> dict[str, Any] | None:
    """The row of one experiment, if it has been begun."""
    rows = store.rows("SELECT * FROM experiment WHERE run = ? AND index = ?", run, index)
    return rows[0] if rows else None


def experiment_of(row: dict[str, Any]) -> Experiment:
    """A row of `experiment` as a strategy sees it; one that is not decided yet counts as `discard`."""
    return experiment_from(
        {
            "index": row["index"],
            "parent": row["parent"],
            "change": row["change"] or {},
            "hypothesis": row["hypothesis"] or "",
            "constants": row["constants"] or {},
            "moves": row["moves"] or [],
            "status": row["status"] or "discard",
            "score": row["score"],
            "seconds": row["train_seconds"] or 0.0,
        }
    )


def history_of(store: Store | Reader, run: str, noise: float | None, direction: Any) -> History:
    """The decided experiments of a run, oldest first."""
    rows = store.rows("SELECT * FROM experiment WHERE run = ? AND step = 'decided' ORDER BY index", run)
    return History(tuple(experiment_of(row) for row in rows), noise, direction)


def put_outcome(store: Store, run: str, index: int, outcome: Outcome) -> None:
    """Writes what an experiment gave: its row, its curve, and the checks that it failed."""
    with store.transaction():
        points = {point.step: point for point in outcome.curve}.values()
        store.put_many("curve", [{"run": run, "experiment": index} | to_json(point) for point in points])
        for ordinal, probe in enumerate(outcome.probes):
            if not probe.passed:
                store.put(
                    "integrity_event",
                    run=run,
                    experiment=index,
                    ordinal=ordinal,
                    what=probe.what,
                    measured=probe.measured,
                    tolerance=probe.tolerance,
                    detail=outcome.detail,
                )
        store.put(
            "experiment",
            run=run,
            index=index,
            step="measured",
            status=None if outcome.status == "scored" else outcome.status,
            score=outcome.score,
            sealed_score=outcome.sealed_score,
            detail=outcome.detail or None,
            log=store.text(outcome.log) if outcome.log else None,
            train_seconds=outcome.train_seconds,
            startup_seconds=outcome.startup_seconds,
            score_seconds=outcome.score_seconds,
            wall_seconds=outcome.wall_seconds,
            training_wall_seconds=outcome.training_wall_seconds,
            steps=outcome.steps,
            tokens=outcome.tokens,
            peak_memory=outcome.peak_memory,
            device=outcome.device,
            finished=now(),
        )

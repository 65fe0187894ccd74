"""The same surface measured over seeds: the noise floor, and gains confirmed on seeds that nothing was chosen by."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

from inner.edit import diff, read_constants
from inner.record import Bench, now, put_outcome, row_of
from inner.trial import Job
from inner.workspace import Workspace


@dataclass(frozen=True)
class Sample:
    """One measurement to make: a surface, a seed for its training, and what it is called in the record."""

    label: str
    surface: str
    seed: int


def measure(bench: Bench, run: str, kind: str, samples: Sequence[Sample], sealed: bool = False) -> list[dict[str, Any]]:
    """Trains and scores each sample, as many at a time as the executor has slots.

    What is recorded already is not run again. Experiment 0 of the run's repository is the task's own surface; the
    measurements are numbered from 1.

    Args:
        bench: where to run and to record.
        run: id of the run that the measurements are recorded under.
        kind: `calibrate` or `confirm`.
        samples: what to measure.
        sealed: score the sealed split as well.

    Returns:
        The rows of the measurements, in the order of `samples`; `score` is `None` where one failed.
    """
    bench.open_run(run, kind=kind, arm=kind, seed=samples[0].seed, experiments=len(samples))
    name = bench.task.surface_name
    workspace = Workspace.create(
        bench.repository(run), name, bench.task.surface, {"program.md": bench.program}, bench.created(run)
    )
    baseline = workspace.experiments()[0]
    committing = Lock()
    splits = ("validation", "sealed") if sealed else ("validation",)
    bench.report("measuring", {"run": run, "kind": kind, "count": len(samples)})

    def one(index: int) -> dict[str, Any]:
        sample = samples[index - 1]
        row = row_of(bench.store, run, index)
        if row is None or row["step"] not in ("measured", "decided"):
            proposed = now() if row is None else row["proposed"]
            message = f"{sample.label}, seed {sample.seed}"
            with committing:
                commit = workspace.commit(index, baseline, sample.surface, message, proposed)
            bench.store.put(
                "experiment",
                run=run,
                index=index,
                step="running",
                seed=sample.seed,
                hypothesis=sample.label,
                change={},
                constants=read_constants(sample.surface, name),
                moves=[],
                diff=bench.store.text(diff(bench.task.surface, sample.surface, name)),
                surface=bench.store.text(sample.surface),
                commit=commit,
                proposed=proposed,
                started=now(),
            )
            outcome = bench.executor.run(Job(bench.task, bench.corpus, sample.surface, sample.seed, splits))
            put_outcome(bench.store, run, index, outcome)
            row = row_of(bench.store, run, index)
            assert row is not None
        if row["step"] == "measured":
            scored = "baseline" if sample.surface == bench.task.surface else "keep"
            row |= {"step": "decided", "status": row["status"] or scored, "decided": now()}
            bench.store.put("experiment", **row)
            bench.report("measured", {"run": run, "kind": kind, "index": index, "label": sample.label, **row})
        return row

    with ThreadPoolExecutor(bench.executor.slots) as pool:
        rows = list(pool.map(one, range(1, len(samples) + 1)))
    bench.close_run(run)
    return rows

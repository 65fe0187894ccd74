"""Any other program as the surface: it is run as it is, and what it prints is taken for the metric.

For a task whose metric is not ours: the surface runs as `python SURFACE` in the same sandbox, with the seed in the
environment variable BILEVEL_SEED and no training tokens. All of its time counts as the budget's, its start-up too.
What it says of itself is *self-reported*, and marked so wherever it is shown.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from inner.sandbox import Tier, spawn
from inner.task import Metric
from inner.trial import Job, Outcome, Result, Stopwatch
from inner.watch import Over, Watched
from traces.errors import TrialError

SEED = "BILEVEL_SEED"
_TAIL = 2**20


def run_program(job: Job, tier: Tier, stop: threading.Event, variables: Mapping[str, str] | None = None) -> Outcome:
    """Runs the surface of `job` as a program.

    Args:
        job: what to run; its corpus and its splits are not used.
        tier: the confinement.
        stop: ends the program when it is set.
        variables: of the program's environment.

    Raises:
        Stopped: the user asked to stop; there is no outcome.
        TrialError: no process can be started.
    """
    task, budget = job.task, job.task.budget
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bilevel-") as folder:
        surface = Path(folder).resolve() / task.surface_name
        surface.write_text(job.surface, encoding="utf-8", newline="")
        try:
            confined = spawn(
                ["-s", str(surface)],
                tier=tier,
                readonly=[surface],
                scratch_mib=budget.scratch_mib,
                threads=budget.threads,
                gpu=budget.device == "cuda",
                variables={**(variables or {}), SEED: str(job.seed)},
            )
        except OSError as error:
            raise TrialError(f"a program did not start: {error}") from None
        watched = Watched(confined, budget.memory_gib, stop, _TAIL)
        clock = Stopwatch(budget, watched)
        status: Result = "scored"
        score, detail = None, ""
        try:
            while confined.exit_status() is None:
                watched.turn(clock.deadline, clock.late, clock.check)
            seconds, wall = clock.read()
            clock.check(seconds)
            words = watched.last_words()
            if confined.exit_status() != "exit status 0":
                raise Over("crash", words)
            score = reported(watched.printed, task.metric)
        except Over as over:
            status, detail = over.status, over.detail
            seconds, wall = clock.read()
        finally:
            log = watched.kill()
    return Outcome(
        status=status,
        score=score,
        detail=detail,
        log=log,
        peak_memory=watched.peak_memory or None,
        device=budget.device,
        train_seconds=seconds,
        training_wall_seconds=wall,
        wall_seconds=time.monotonic() - began,
    )


def reported(printed: str, metric: Metric) -> float:
    """The metric as a program printed it: the last match of the pattern, or the last line that is a JSON object.

    Raises:
        Over: there is none, or it is not a finite number.
    """
    assert metric.pattern is not None
    if metric.source == "stdout":
        found = re.findall(metric.pattern, printed)
        if not found:
            raise Over("crash", f"printed nothing that matches metric.pattern = {metric.pattern!r}")
        value = found[-1]
    else:
        value = _last_object(printed)
        for key in metric.pattern.split("."):
            if not isinstance(value, dict) or key not in value:
                raise Over("crash", f"the last line that is a JSON object has no {metric.pattern}, or there is none")
            value = value[key]
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise Over("crash", f"{metric.name} = {value!r:.80} is not a finite number")
    return score


def _last_object(printed: str) -> object:
    for line in reversed(printed.splitlines()):
        if line.lstrip().startswith("{"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                return value
    return None

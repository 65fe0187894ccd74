"""Real processes of the command line, and a laboratory for them to show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bilevel.cli import main
from traces.store import Store

ROOT = Path(__file__).parent.parent.parent
BEGUN = datetime(2026, 3, 1, 9)
# Clears the screen, sets the title, links, turns the direction, and is closed by nothing.
HOSTILE = "lower\x1b[2J\x1b]0;owned\x07 the \x9b31mrate [bold]now[/bold]\u202e\x1b]8;;http://x"
TAMED = "lower the rate [bold]now[/bold]8;;http://x"

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """`bilevel arguments...` in an empty folder, as another process."""

    def call(*arguments: Any, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bilevel", *map(str, arguments)]
        variables = {k: v for k, v in os.environ.items() if k not in ("BILEVEL_LAB", "COLUMNS")}
        variables |= {"PYTHONPATH": str(ROOT), "BILEVEL_CACHE": str(tmp_path / "cache")} | (environment or {})
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)

    return call


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The same in this process, which is faster: for where nothing but the command is new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BILEVEL_LAB", raising=False)
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path / "cache"))

    def call(*arguments: Any) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        status = main([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return call


def put_run(store: Store, run: str, study: str = "run-1", **columns: Any) -> None:
    usual = {
        "kind": "search", "arm": "level1", "seed": 1, "experiments": 4, "status": "done", "task": "mini",
        "tier": "none", "metric_source": "scorer", "model": "prior", "model_is_stand_in": True, "created": BEGUN,
    }  # fmt: skip
    store.put("run", id=run, study=study, **(usual | columns))


def put_experiment(store: Store, run: str, index: int, status: str | None, score: float | None, **columns: Any) -> None:
    step = "running" if status is None else "decided"
    usual = {"parent": 0 if index else None, "seed": 1, "moves": [], "change": {}, "train_seconds": 5.0}
    store.put("experiment", run=run, index=index, step=step, status=status, score=score, **(usual | columns))


def move(constant: str, before: Any, after: Any) -> dict[str, Any]:
    return {"constant": constant, "direction": "up", "before": before, "after": after}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """One study: a search of four experiments and two meta-iterations."""
    folder = tmp_path / "lab"
    with Store.open(folder) as store:
        store.put(
            "study", id="run-1", command="run", task="benchmarks/gpt/mini.toml", config={"confidence": 0.8}, seed=1,
            status="done", tier="none", noise=0.003, noise_n=5, created=BEGUN, finished=BEGUN.replace(minute=2),
        )  # fmt: skip
        put_run(store, "run-1.r1")
        put_experiment(store, "run-1.r1", 0, "baseline", 2.0, hypothesis="the surface as it is")
        put_experiment(
            store, "run-1.r1", 1, "keep", 1.75, significant=True, hypothesis=HOSTILE, moves=[move("DEPTH", 4, 6)],
            diff=store.text(f"--- train.py\n+++ train.py\n@@ -1 +1 @@\n-DEPTH = 4\n+DEPTH = 6  # {HOSTILE}\n"),
        )  # fmt: skip
        put_experiment(store, "run-1.r1", 2, "discard", 1.9, moves=[move("DEPTH", 6, 8)])
        put_experiment(store, "run-1.r1", 3, "crash", None, detail=f"ValueError: {HOSTILE}", train_seconds=None)
        store.put(
            "integrity_event",
            run="run-1.r1",
            experiment=3,
            ordinal=0,
            what="causal",
            measured=float("nan"),
            tolerance=0.05,
        )
        store.put(
            "meta_iteration", study="run-1", index=0, step="decided", mechanism="tabu", decision="adopt", gain=0.02,
            low=0.01, high=0.03, confidence=0.9, pairs=4, detectable=0.012, calls_differing=7, calls_compared=9,
            reason=HOSTILE, created=BEGUN,
        )  # fmt: skip
        store.put("meta_iteration", study="run-1", index=1, step="diagnosed", diagnosis="stuck", created=BEGUN)
    return folder


@pytest.fixture
def confirmed(lab: Path) -> Path:
    """The same, with its gain confirmed on three seeds."""
    with Store.open(lab) as store:
        put_run(store, "run-1.confirm", kind="confirm", arm="confirm", experiments=6)
        for seed, (baseline, best) in enumerate([(2.0, 1.8), (2.1, 1.85), (1.9, 1.75)]):
            put_experiment(store, "run-1.confirm", 2 * seed + 1, "baseline", baseline, hypothesis="baseline", seed=seed)
            put_experiment(store, "run-1.confirm", 2 * seed + 2, "baseline", best, hypothesis="best", seed=seed)
    return lab

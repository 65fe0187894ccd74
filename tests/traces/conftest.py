"""A plausible study to read, and other processes to meet."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from traces.stats import detectable, paired
from traces.store import Store

CONSTANTS = {"DEPTH": 4, "MATRIX_LR": 0.04, "WEIGHT_DECAY": 0.2, "TOTAL_BATCH_SIZE": 65536, "WINDOW_PATTERN": "SSSL"}
BEGUN = datetime(2026, 3, 1, 9)


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return tmp_path / "lab"


@pytest.fixture
def store(lab: Path) -> Iterator[Store]:
    with Store.open(lab) as opened:
        yield opened


def put_history(store: Store, run: str, history: list[tuple[str, list[tuple[str, str, Any]]]], **columns: Any) -> None:
    """Experiments from index 0 on, each a status and its (constant, direction, after)."""
    for index, (status, moves) in enumerate(history):
        store.put(
            "experiment",
            run=run,
            index=index,
            step="decided",
            status=status,
            moves=[{"constant": c, "direction": d, "before": None, "after": a} for c, d, a in moves],
            change={"constants": {c: a for c, _, a in moves}, "blocks": [], "text": None},
            **columns,
        )


def fill_study(store: Store, study: str = "evolve-1", seed: int = 0, pairs: int = 3, metas: int = 4) -> None:
    """A study as `evolve` leaves it: a calibration, a search, and meta-iterations whose pairs go on from its end."""
    rng = random.Random(seed)
    noise = 0.004
    store.put(
        "study", id=study, command="evolve", task="benchmarks/gpt/mini.toml", config={}, seed=seed, status="done",
        tier="bubblewrap", noise=noise, noise_n=5, created=BEGUN,
    )  # fmt: skip

    def open_run(run: str, kind: str, arm: str | None, experiments: int, **columns: Any) -> None:
        store.put(
            "run", id=run, study=study, kind=kind, arm=arm, seed=rng.randrange(1000), experiments=experiments,
            status="done", task="mini", metric_source="scorer", tier="bubblewrap", created=BEGUN, **columns,
        )  # fmt: skip

    experiments: dict[str, list[dict[str, Any]]] = {}
    curves: list[dict[str, Any]] = []

    def experiment(run: str, index: int, score: float | None, status: str) -> None:
        name = rng.choice([*CONSTANTS][1:4])
        up = rng.random() < 0.5
        after = CONSTANTS[name] * (2 if up else 0.5)  # type: ignore[operator]
        moves = [{"constant": name, "direction": "up" if up else "down", "before": CONSTANTS[name], "after": after}]
        proposed = status != "baseline"
        experiments.setdefault(run, []).append({
            "run": run, "index": index, "inherited": False, "step": "decided", "status": status, "score": score,
            "hypothesis": f"{name} is too {'small' if up else 'large'}" if proposed else None, "seed": seed,
            "significant": rng.random() < 0.5 if status == "keep" else None, "parent": 0 if proposed else None,
            "moves": moves if proposed else [], "change": {"constants": {name: after} if proposed else {}},
            "constants": CONSTANTS, "commit": f"{rng.getrandbits(160):040x}", "peak_memory": rng.randrange(2**31),
            "train_seconds": 5.0, "finished": BEGUN + timedelta(minutes=index),
        })  # fmt: skip
        if score is not None:
            end, steps = 1.8 * score, range(21)
            curves.extend(
                {"run": run, "experiment": index, "step": 10 * k, "progress": k / 20, "loss": end + 3 / (1 + k)}
                for k in steps
            )

    def search(run: str, first: int, last: int, best: float, luck: float) -> float:
        for index in range(first, last):
            score = best + rng.gauss(0.012 - luck, 0.014)
            failed = rng.random() < 0.12
            if failed:
                experiment(run, index, None, rng.choice(["crash", "timeout", "invalid", "refused"]))
            elif score < best:
                best = score
                experiment(run, index, score, "keep")
            else:
                experiment(run, index, score, "discard")
        return best

    open_run(f"{study}/noise", "calibrate", None, 5)
    for index in range(5):
        experiment(f"{study}/noise", index, 1.85 + rng.gauss(0, noise), "baseline")
    level1 = f"{study}/level1"
    open_run(level1, "search", "level1", 12)
    experiment(level1, 0, 1.85, "baseline")
    best = search(level1, 1, 12, 1.85, 0.0)
    for meta in range(metas):
        gains = []
        for pair in range(pairs):
            runs = {arm: f"{study}/m{meta + 1}p{pair}-{arm}" for arm in ("incumbent", "candidate")}
            ends = {}
            for arm, run in runs.items():
                open_run(run, "search", arm, 20, forked_from=level1, forked_at=12)
                experiments[run] = [row | {"run": run, "inherited": True} for row in experiments[level1]]
                ends[arm] = search(run, 12, 20, best, [-0.006, 0.015, 0.0, 0.0][meta] * (arm == "candidate"))
            gains.append(ends["incumbent"] - ends["candidate"])
            store.put(
                "pair", study=study, meta_iteration=meta + 1, index=pair, seed=pair, incumbent_run=runs["incumbent"],
                candidate_run=runs["candidate"], incumbent_scores=[ends["incumbent"]],
                candidate_scores=[ends["candidate"]], difference=gains[-1],
            )  # fmt: skip
        interval = paired(gains, 0.9)
        known: dict[str, Any] = {"decision": "inert"}
        if meta < 3:
            decision = "adopt" if interval.low > 0 else "reject" if interval.high < 0 else "indecisive"
            known = {"decision": decision, "gain": interval.mean, "low": interval.low, "high": interval.high}
            known["detectable"] = detectable(statistics.stdev(gains), pairs, 0.9)
        store.put(
            "meta_iteration", study=study, index=meta + 1, step="decided", confidence=0.9, pairs=pairs,
            mechanism=["tabu", "opposite direction", "bandit over constants", "annealed acceptance"][meta],
            created=BEGUN, **known,
        )  # fmt: skip
    store.put_many("experiment", [row for rows in experiments.values() for row in rows])
    store.put_many("curve", curves)


@pytest.fixture
def history() -> Callable[..., None]:
    return put_history


@pytest.fixture
def filled(store: Store) -> Store:
    fill_study(store)
    return store


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `python -c source arguments...`, with pipes; whatever still lives at the end is killed."""
    started = []

    def start(source: str, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()

"""What an experiment costs beside its training: `python -m benchmarks.speed.overhead`.

Runs level 1 on a task as `bilevel run` does, graph, strategy, git and record included, and prints one row a part. The
overhead is the wall time between two decisions less training, start-up and scoring: what the laboratory itself takes.
The floor is what must be paid: importing torch once a worker, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

import inner.strategy
from benchmarks.gpt.prepare import prepare
from inner.corpus import Corpus
from inner.executor import LocalExecutor
from inner.loop import Plan, run_inner
from inner.model import load_model
from inner.record import Bench, now
from inner.task import Task, load_task
from traces.store import Store

TASK = Path(__file__).parent.parent / "gpt" / "mini.toml"
STUDY = "overhead"


def main() -> None:
    """Runs the experiments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", type=Path, default=TASK)
    parser.add_argument("--experiments", type=int, default=12, help="of each run, the baseline counted in")
    parser.add_argument("--seconds", type=float, help="another budget than the task's")
    parser.add_argument("--slots", type=int, help="runs side by side (default: as many as the machine has room for)")
    chosen = parser.parse_args()
    task = load_task(chosen.task, seconds=chosen.seconds)
    strategy = Path(inner.strategy.__file__).read_text(encoding="utf-8")
    with bench(task, chosen.slots) as (desk, checkpoints), ThreadPoolExecutor(desk.executor.slots) as pool:
        slots = desk.executor.slots
        plans = [Plan(f"{STUDY}.{i}", "level1", i, chosen.experiments, strategy) for i in range(slots)]
        list(pool.map(lambda plan: run_inner(desk, plan, checkpoints), plans))
        rows = desk.store.rows(
            "SELECT *, epoch(decided) - epoch(lag(decided) OVER (PARTITION BY run ORDER BY index)) AS turn "
            "FROM experiment WHERE status <> 'refused' ORDER BY run, index"
        )
    table = parts([row for row in rows if row["turn"] is not None])
    print(f"machine: {machine()}; task {chosen.task.name}; {len(rows)} experiments, {slots} at a time")
    print(f"{'seconds of wall time':44} {'median':>8} {'p10':>8} {'p90':>8}")
    for name, values in table.items():
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        print(f"{name:44} {statistics.median(values):8.3f} {tenths[0]:8.3f} {tenths[-1]:8.3f}")
    print(f"{'floor of start-up: import torch, once':44} {floor():8.3f}")


@contextmanager
def bench(task: Task, slots: int | None) -> Iterator[tuple[Bench, SqliteSaver]]:
    """A laboratory that is gone afterwards."""
    corpus = Corpus.open(prepare(task.data.source, task.data.vocab_size))
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder)) as store,
        LocalExecutor(task, slots) as executor,
        SqliteSaver.from_conn_string(str(Path(folder) / "checkpoints.sqlite")) as checkpoints,
    ):
        study = {"id": STUDY, "command": "run", "task": str(task.path), "config": {}, "seed": 0, "status": "running"}
        store.put("study", created=now(), **study)
        desk = Bench(store, Path(folder), STUDY, task, corpus, executor, load_model("prior"), "", lambda *_: None)
        yield desk, checkpoints


def parts(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The parts of each turn from one decision to the next, in seconds."""
    return {
        "turn: from one decision to the next": [row["turn"] for row in rows],
        "training": [row["training_wall_seconds"] for row in rows],
        "start-up: what was not hidden": [row["startup_seconds"] for row in rows],
        "scoring and checks": [row["score_seconds"] for row in rows],
        "overhead: the turn less all of these": [
            row["turn"] - row["training_wall_seconds"] - row["startup_seconds"] - row["score_seconds"] for row in rows
        ],
        "training, on the budget's clock": [row["train_seconds"] for row in rows],
        "scoring as a share of the training": [row["score_seconds"] / row["training_wall_seconds"] for row in rows],
    }


def floor(times: int = 3) -> float:
    """Median seconds of wall time that a new interpreter takes to import torch."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", "import torch"], check=True)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def machine() -> str:
    """What this machine is, in a few words."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    name = models[0] if models else platform.processor()
    return f"{name}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    main()

"""A small task, histories to order, and strategies at work in their sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from inner.history import Change, Constant, Experiment, History, Status, TaskView, Value, moves_between
from inner.host import Host
from inner.sandbox import tier

SPACE = {
    "TOTAL_BATCH_SIZE": Constant("TOTAL_BATCH_SIZE", "int", 2**10, 2**20, "log", power_of_two=True),
    "MATRIX_LR": Constant("MATRIX_LR", "float", 0.001, 1.0, "log"),
    "WEIGHT_DECAY": Constant("WEIGHT_DECAY", "float", 0.0, 1.0, "linear"),
    "DEPTH": Constant("DEPTH", "int", 1, 12, "linear"),
    "WINDOW_PATTERN": Constant("WINDOW_PATTERN", "choice", choices=("L", "SL", "SSSL")),
}
TASK = TaskView("small", "val_bpb", "minimize", 5.0, 30, SPACE)
START: Mapping[str, Value] = {
    "TOTAL_BATCH_SIZE": 2**16,
    "MATRIX_LR": 0.04,
    "WEIGHT_DECAY": 0.25,
    "DEPTH": 4,
    "WINDOW_PATTERN": "SSSL",
}

Step = tuple[Mapping[str, Value], float | None, Status]
Grow = Callable[..., History]
Perform = Callable[[str, History], Host]


@pytest.fixture
def task() -> TaskView:
    return TASK


@pytest.fixture
def grow() -> Grow:
    """A history: the baseline, then steps (constants changed against the best, score, status)."""

    def build(*steps: Step, noise: float | None = 0.01, baseline: float = 1.0) -> History:
        first = Experiment(0, None, Change(), "the surface as it is", dict(START), (), "baseline", baseline, 5.0)
        history = History((first,), noise)
        for change, score, status in steps:
            parent = history.best
            constants = dict(parent.constants) | dict(change)
            moves = moves_between(SPACE, parent.constants, constants)
            index = len(history)
            experiment = Experiment(
                index, parent.index, Change(change), f"step {index}", constants, moves, status, score, 5.0
            )
            history = replace(history, experiments=(*history.experiments, experiment))
        return history

    return build


@pytest.fixture
def perform() -> Iterator[Perform]:
    """A strategy in its sandbox that has observed a history."""
    hosts: list[Host] = []

    def start(source: str, history: History) -> Host:
        host = Host(source, TASK, 0, tier())
        hosts.append(host)
        for length in range(1, len(history) + 1):
            host.observe(replace(history, experiments=history.experiments[:length]), history[length - 1])
        return host

    yield start
    for host in hosts:
        host.close()


@pytest.fixture
def seed_source() -> str:
    return (Path(__file__).parents[2] / "inner" / "strategy.py").read_text(encoding="utf-8")


@pytest.fixture
def recorded(grow: Grow) -> History:
    """A history such as the seed strategy leaves: it comes back to one constant, and keeps what is hardly better."""
    return grow(
        ({"TOTAL_BATCH_SIZE": 2**17}, 1.03, "discard"),
        ({"WEIGHT_DECAY": 0.0}, 0.99, "keep"),
        ({"MATRIX_LR": 0.08}, 0.94, "keep"),
        ({"MATRIX_LR": 0.16}, 0.945, "discard"),
        ({"MATRIX_LR": 0.32}, None, "crash"),
        ({"WINDOW_PATTERN": "L"}, 0.943, "discard"),
        ({"WEIGHT_DECAY": 0.25}, 0.95, "discard"),
        ({"WEIGHT_DECAY": 0.5}, 0.97, "discard"),
        ({"DEPTH": 5}, 0.93, "keep"),
        ({"WEIGHT_DECAY": 0.75}, 0.98, "discard"),
        ({}, None, "refused"),
    )

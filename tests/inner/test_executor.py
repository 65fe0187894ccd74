"""Experiments on this machine: so many at a time, each in a process that was warmed for it, and none left behind."""

import json
import os
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from inner.executor import LocalExecutor, default_slots, visible_gpus
from inner.task import load_task
from inner.trial import Job
from traces.errors import MachineError, Stopped, TrialError

from .conftest import write_corpus

TASK = """
name = "tiny"
surface = "train.py"
[budget]
seconds = 0.1
grace_seconds = 0.4
clock = "cpu"
[data]
context = 8
[scoring]
tokens = 64
rows = 4
[constants]
"""
PROGRAM = TASK.replace("[budget]", '[metric]\nsource = "stdout"\npattern = "score: (.*)"\n[budget]').replace(
    "[scoring]\ntokens = 64\nrows = 4\n", ""
)
SURFACE = """
import json, os, sys, torch
def build(spec):
    print(json.dumps([os.path.exists("/tmp/used"), sys.modules.get("used") is None]), flush=True)
    open("/tmp/used", "w").close()
    sys.modules["used"] = sys
def train(state, tokens, clock): pass
def logits(state, tokens): return torch.zeros(*tokens.shape, 64)
"""


def load(folder, text, **budget):
    (folder / "train.py").write_text("")
    (folder / "tiny.toml").write_text(text)
    task = load_task(folder / "tiny.toml")
    return replace(task, budget=task.budget.model_copy(update=budget))


def descendants():
    """What runs below this process, as lists of words."""
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(child) for child in (thread / "children").read_text().split()]
            if pid != os.getpid() and (words := Path(f"/proc/{pid}/cmdline").read_text().split("\0"))[0]:
                found.append(words)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def slept(seconds):
    return f"import time; print('score: 1', flush=True); time.sleep({seconds})"


MEETING = """
import os, sys, time
open(f"{folder}/{{os.environ['BILEVEL_SEED']}}", "w").close()
begin = time.monotonic()
while len(os.listdir({folder!r})) < {slots}:
    time.sleep(0.01)
time.sleep(0.2)
print("score:", begin, "\\nend:", time.monotonic())
"""


# With programs, which start at once.


@pytest.mark.parametrize("slots", [1, 3])
def test_no_more_run_at_a_time_than_there_are_slots_and_no_fewer(tmp_path, slots):
    """Each program waits until as many have begun as there are slots."""
    task = load(tmp_path, PROGRAM, clock="wall", seconds=60.0)
    (tmp_path / "met").mkdir()
    text = MEETING.format(folder=str(tmp_path / "met"), slots=slots)
    with LocalExecutor(task, slots, tier="none") as executor, ThreadPoolExecutor(5) as pool:
        outcomes = list(pool.map(executor.run, [Job(task, None, text, seed) for seed in range(5)]))
    spans = [tuple(float(line.split()[1]) for line in outcome.log.splitlines()) for outcome in outcomes]
    at_once = [sum(begin <= other <= end for begin, end in spans) for other, _ in spans]
    assert max(at_once) == slots


def test_stopping_ends_those_that_run_and_those_that_wait(tmp_path):
    task = load(tmp_path, PROGRAM, clock="wall", seconds=600.0)
    with LocalExecutor(task, 2) as executor, ThreadPoolExecutor(4) as pool:
        running = [pool.submit(executor.run, Job(task, None, slept(600), seed)) for seed in range(4)]
        while sum("train.py" in " ".join(words) for words in descendants()) < 2:
            time.sleep(0.02)
        assert not executor.stopped
        executor.stop()
        began = time.monotonic()
        for future in running:
            with pytest.raises(Stopped):
                future.result(timeout=30)
        assert time.monotonic() - began < 5
        assert executor.stopped
        with pytest.raises(Stopped):
            executor.run(Job(task, None, slept(0), 0))
        assert not descendants()


def test_a_slot_is_given_back_whatever_happens_in_it(tmp_path):
    task = load(tmp_path, PROGRAM, clock="wall", seconds=60.0)
    with LocalExecutor(task, 1) as executor:
        assert executor.run(Job(task, None, "raise ValueError", 0)).status == "crash"
        with pytest.raises(UnicodeEncodeError):
            executor.run(Job(task, None, "x = '\ud800'", 0))
        assert executor.run(Job(task, None, "print('score: 1')", 0)).score == 1.0


# With workers, which import torch.


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("executor")
    return load(folder, TASK), write_corpus(folder / "corpus")


def test_workers_are_warmed_ahead_and_used_once(bench):
    task, corpus = bench
    before = len(os.listdir("/proc/self/fd"))
    with LocalExecutor(task, 1) as executor:
        assert not descendants()  # nothing before there is something to run
        for _ in range(2):
            outcome = executor.run(Job(task, corpus, SURFACE, 0))
            assert outcome.status == "scored"
            assert json.loads(outcome.log) == [False, True]
        warmed = executor._warm[0]
        assert select.select([warmed._channel], [], [], 60)[0]
        assert warmed.expect("warm", time.monotonic() + 60, "late") == {"say": "warm", "device": "cpu"}
    assert not descendants()
    # The tokens and the scorer of a corpus stay.
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_fault_of_the_machine_is_tried_again_once(bench):
    task, corpus = bench
    with LocalExecutor(task, 1) as executor:
        executor._take(0).kill()
        os.kill(executor._warm[0].confined.process.pid, 9)
        assert executor.run(Job(task, corpus, SURFACE, 0)).status == "scored"

        class Broken(LocalExecutor):
            started = 0

            def _start(self, slot):
                self.started += 1
                raise TrialError("a worker did not start: no more processes")

    with Broken(task, 1) as broken:
        with pytest.raises(TrialError, match="no more processes"):
            broken.run(Job(task, corpus, SURFACE, 0))
        assert broken.started == 2


def test_stopping_ends_a_training(bench):
    task, corpus = bench
    task = replace(task, budget=task.budget.model_copy(update={"seconds": 600.0}))
    seen = threading.Event()

    def prune(curve):
        seen.set()
        return False

    text = SURFACE.replace("clock): pass", "clock):\n    while True: clock.report(1, 1.0, 1)")
    with LocalExecutor(task, 1) as executor, ThreadPoolExecutor(1) as pool:
        running = pool.submit(executor.run, Job(task, corpus, text, 0), prune)
        assert seen.wait(60)
        executor.stop()
        began = time.monotonic()
        with pytest.raises(Stopped):
            running.result(timeout=30)
        assert time.monotonic() - began < 5


# What it needs.


def test_there_are_as_many_slots_as_the_cores_have_room_for(tmp_path):
    cores = len(os.sched_getaffinity(0))
    assert default_slots(load(tmp_path, TASK)) == cores
    assert default_slots(load(tmp_path, TASK, threads=cores)) == 1
    assert default_slots(load(tmp_path, TASK, threads=10 * cores)) == 1


def test_a_task_for_a_gpu_needs_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    task = load(tmp_path, TASK, device="cuda", clock="wall")
    for slots in (None, 2):
        with pytest.raises(MachineError, match=r"tiny.toml needs a GPU .* use --task benchmarks/gpt/mini.toml"):
            LocalExecutor(task, slots)


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["0", "1"]), ("", ["0", "1"]), ("3, 5,7", ["3", "5"]), ("GPU-a,GPU-b", ["GPU-a", "GPU-b"])],
)
def test_each_slot_gets_a_gpu_of_its_own(visible, names, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus(2) == names

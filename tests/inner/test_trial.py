"""What an experiment may do and what becomes of it: real workers, tiny surfaces, a tiny corpus."""

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inner.memory import training_tokens
from inner.scorer import Scorer
from inner.task import load_task
from inner.trial import Job, Worker, run_trial, scorer_of
from traces.errors import CorpusError, Stopped, TrialError

from .conftest import write_corpus

VOCAB, CONTEXT, ROWS = 64, 16, 8
TASK = f"""
name = "tiny"
surface = "train.py"
[budget]
seconds = 0.3
grace_seconds = 0.2
clock = "cpu"
startup_seconds = 30
scoring_seconds = 30
memory_gib = 2
scratch_mib = 8
[data]
vocab_size = 512
context = {CONTEXT}
[scoring]
tokens = {4 * ROWS * CONTEXT}
rows = {ROWS}
[constants]
"""

# A bigram table: what has been seen is what is expected.
SURFACE = """
import torch

def build(spec):
    torch.manual_seed(spec.seed)
    return {"spec": spec, "counts": torch.ones(spec.vocab_size, spec.vocab_size)}

def train(state, tokens, clock):
    step, size = 0, 500
    while clock.progress() < 0.8:
        part = tokens[step * size % (len(tokens) - 1):][:size + 1].long()
        state["counts"].index_put_((part[:-1], part[1:]), torch.ones(()), accumulate=True)
        step += 1
        clock.report(step, 1 / step, step * size)

def logits(state, tokens):
    return (state["counts"] / state["counts"].sum(1, keepdim=True)).log()[tokens]
"""


def surface(build="", train="", logits=""):
    """The bigram table, with statements put before what each function does."""
    text = SURFACE
    for head, statements in (
        ("def build(spec):\n", build),
        ("def train(state, tokens, clock):\n", train),
        ("def logits(state, tokens):\n", logits),
    ):
        lines = "".join(f"    {line}\n" for line in statements.splitlines())
        text = text.replace(head, head + lines)
    return text


class Bench:
    """A task, its corpus, and a worker that is being warmed for the next trial."""

    def __init__(self, folder):
        (folder / "train.py").write_text("")
        (folder / "tiny.toml").write_text(TASK)
        self.task = load_task(folder / "tiny.toml")
        rng = np.random.default_rng(5)
        self.train = rng.integers(1, VOCAB, 20_000)
        self.train[::50] = 0
        self.corpus = write_corpus(folder / "corpus", vocab=VOCAB, train=self.train)
        self.stop = threading.Event()
        self.worker = self.start(self.task)

    def start(self, task, tier="bubblewrap"):
        return Worker(tier, task, self.stop)

    def job(self, text=SURFACE, seed=1, splits=("validation",), **budget):
        task = replace(self.task, budget=self.task.budget.model_copy(update=budget))
        return Job(task, self.corpus, text, seed, splits)

    def run(self, text=SURFACE, prune=None, **about):
        job = self.job(text, **about)
        if about.keys() & {"clock", "memory_gib", "scratch_mib"}:
            return run_trial(job, self.start(job.task), prune)
        worker, self.worker = self.worker, self.start(self.task)
        return run_trial(job, worker, prune)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.worker.kill()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """Every trial gives back its descriptors and its folders, however it ended."""
    if "bench" not in request.fixturenames:
        yield
        return
    bench = request.getfixturevalue("bench")
    # These stay, once a corpus.
    training_tokens(bench.corpus)
    for split in ("validation", "sealed"):
        scorer_of(bench.job(), split)
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


# An experiment that does as it should.


def test_a_sound_experiment_is_scored_and_told_of(bench):
    tell = "import json; print(json.dumps([vars(spec), __import__('os').listdir('.')]))"
    look = "print(tokens.dtype, tokens.shape, int(tokens[:100].long().sum()), flush=True)"
    outcome = bench.run(surface(build=tell, train=look), seed=7, splits=("validation", "sealed"))
    assert (outcome.status, outcome.detail, outcome.device) == ("scored", "", "cpu")
    assert 0 < outcome.score < 20
    first, second = outcome.log.splitlines()
    spec, files = json.loads(first)
    assert spec == {
        "vocab_size": VOCAB, "context": CONTEXT, "device": "cpu", "seed": 7, "budget_seconds": 0.3, "rows": ROWS,
    }  # fmt: skip
    assert "train.py" in files
    assert second == f"torch.uint16 torch.Size([20000]) {bench.train[:100].sum()}"

    assert [probe.what for probe in outcome.probes] == ["finite", "causal", "stateless"] * 2
    assert all(probe.passed for probe in outcome.probes)
    assert 0.2 <= outcome.train_seconds <= 0.5
    assert outcome.training_wall_seconds > 0.1
    parts = outcome.startup_seconds + outcome.training_wall_seconds + outcome.score_seconds
    assert 0 < parts <= outcome.wall_seconds
    assert 100e6 < outcome.peak_memory < 2 * 2**30

    assert outcome.curve
    assert outcome.steps >= outcome.curve[-1].step
    assert outcome.tokens == 500 * outcome.steps
    assert all(point.loss == pytest.approx(1 / point.step) for point in outcome.curve)
    progress = [point.progress for point in outcome.curve]
    assert progress == sorted(progress)
    assert 0 <= progress[0] <= progress[-1] <= 1
    assert len(outcome.curve) <= 2 + 10 * outcome.training_wall_seconds


def test_the_score_is_that_of_what_the_worker_answers(bench):
    """A model that needs no training, scored once by a trial and once here."""
    outcome = bench.run(
        surface(logits="return torch.cos(tokens.unsqueeze(-1) * torch.arange(64.0))"), splits=("validation", "sealed")
    )

    def model(block):
        return np.cos(block[..., None].astype(np.float32) * np.arange(VOCAB, dtype=np.float32))

    for split, score in (("validation", outcome.score), ("sealed", outcome.sealed_score)):
        known = Scorer(bench.corpus, split, bench.task.scoring, CONTEXT).score(model).bits_per_byte
        assert score == pytest.approx(known, rel=1e-5)
    assert outcome.score != outcome.sealed_score


def test_without_bubblewrap_an_experiment_runs_all_the_same(bench):
    job = bench.job()
    outcome = run_trial(job, bench.start(bench.task, tier="none"))
    assert outcome.status == "scored"
    assert outcome.sealed_score is None


# An experiment that fails.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def build(spec):\n    return (", "SyntaxError"),
        (surface(train="print('some words'); raise RuntimeError('the loss is\\nnan')"), "nan"),
        (surface(build="__import__('os')._exit(0)"), "exit status 0"),
        (surface(logits="return torch.zeros(tokens.shape)"), "ValueError: logits must have shape (8, 16, 64)"),
    ],
    ids=["syntax", "raises", "leaves", "shape"],
)
def test_a_crash_is_told_in_its_last_line(bench, text, words):
    outcome = bench.run(text)
    assert (outcome.status, outcome.score) == ("crash", None)
    assert words in outcome.detail
    assert "\n" not in outcome.detail
    if "some words" in text:
        assert "some words" in outcome.log
        assert "Traceback" in outcome.log


def test_who_hangs_before_the_clock_is_late(bench):
    outcome = bench.run(surface(build="__import__('time').sleep(600)"), startup_seconds=0.5)
    assert (outcome.status, outcome.detail) == ("timeout", "was not ready after budget.startup_seconds = 0.5")
    assert outcome.train_seconds == 0


def test_who_sleeps_on_the_cpu_clock_is_late_by_the_wall(bench):
    began = time.monotonic()
    outcome = bench.run(surface(train="__import__('time').sleep(600)"), seconds=0.1, grace_seconds=0.1)
    assert outcome.status == "timeout"
    assert outcome.detail == "took 1.6 s of wall time for a cpu budget of 0.1 s"
    assert outcome.train_seconds < 0.2
    assert time.monotonic() - began < 60


def test_who_trains_and_prints_past_the_budget_is_late(bench):
    outcome = bench.run(surface(train="while True: print('still training')"))
    assert outcome.status == "timeout"
    assert outcome.detail == "was still running after 0.5 cpu s (budget.seconds and its grace)"
    assert 0.5 < outcome.train_seconds < 2.0
    assert outcome.log.endswith("still training\n") or "still training" in outcome.log


def test_who_trains_past_the_budget_on_the_wall_clock_is_late(bench):
    outcome = bench.run(surface(train="__import__('time').sleep(600)"), clock="wall")
    assert outcome.status == "timeout"
    assert outcome.detail == "was still running after 0.5 s (budget.seconds and its grace)"
    assert 0.5 < outcome.train_seconds < 5.0


def test_who_trains_in_threads_pays_for_all_of_them(bench):
    burn = """
import threading, time
for _ in range(3): threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
time.sleep(600)
"""
    outcome = bench.run(surface(train=burn))
    assert outcome.status == "timeout"
    assert outcome.detail == "was still running after 0.5 cpu s (budget.seconds and its grace)"


def test_who_goes_on_training_in_the_first_answer_is_late(bench):
    """Every answer is alike, so that no probe sees it."""
    more = """
import time
end = time.process_time() + 1
while "trained" not in state and time.process_time() < end: pass
state["trained"] = True
"""
    outcome = bench.run(surface(logits=more))
    assert (outcome.status, outcome.score) == ("timeout", None)
    assert "went on training" in outcome.detail
    assert all(probe.passed for probe in outcome.probes)


def test_who_does_not_answer_the_scorer_is_late(bench):
    outcome = bench.run(surface(logits="__import__('time').sleep(600)"), scoring_seconds=0.5)
    assert (outcome.status, outcome.detail) == (
        "timeout", "had not answered the scorer after budget.scoring_seconds = 0.5",
    )  # fmt: skip
    assert outcome.score_seconds >= 0.5


def test_who_takes_too_much_memory_is_ended(bench):
    outcome = bench.run(surface(build="held = torch.ones(2**28)\n__import__('time').sleep(600)"), memory_gib=0.75)
    assert outcome.status == "crash"
    assert "the limit is budget.memory_gib = 0.75" in outcome.detail
    assert outcome.peak_memory > 0.75 * 2**30


@pytest.mark.parametrize(
    ("logits", "what"),
    [
        ("return torch.full((*tokens.shape, 64), float('nan'))", "finite"),
        ("return torch.nn.functional.one_hot(tokens.roll(-1, 1), 64) * 9.0", "causal"),
        (
            "state['asked'] = state.get('asked', 0) + 1\n"
            "return torch.nn.functional.one_hot(tokens, 64) * float(state['asked'])",
            "stateless",
        ),
    ],
    ids=["not a number", "looks ahead", "changes"],
)
def test_an_answer_that_no_score_can_be_made_of_is_invalid(bench, logits, what):
    outcome = bench.run(surface(logits=logits))
    assert (outcome.status, outcome.score, outcome.sealed_score) == ("invalid", None, None)
    failed = {probe.what for probe in outcome.probes if not probe.passed}
    assert what in failed
    assert outcome.detail.split(":")[0] in failed


def test_nonsense_on_the_socket_is_a_crash(bench):
    """The surface finds the channel and says that it has trained, and more."""
    forge = """
body = b'{"say": "trained", "steps": -1, "tokens": true, "device_memory": 1e300}'
clock._channel.sendall(len(body).to_bytes(4, "little") + body)
body = b'{"say": "point", "step": 1e300, "progress": "NaN", "loss": null}'
clock._channel.sendall(len(body).to_bytes(4, "little") + body)
"""
    outcome = bench.run(surface(train=forge))
    assert outcome.status == "crash"
    assert outcome.steps is None
    assert outcome.tokens is None


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ('{"say": "point", "step": 1, "progress": 0.5, "loss": null}', "a point that is not one"),
        ('{"say": "point", "step": 1e300, "progress": 0.5, "loss": 1}', "reported step"),
    ],
)
def test_a_point_that_is_none_is_a_crash(bench, point, words):
    forge = f"body = {point!r}.encode()\nclock._channel.sendall(len(body).to_bytes(4, 'little') + body)"
    outcome = bench.run(surface(train=forge))
    assert (outcome.status, outcome.curve) == ("crash", ())
    assert words in outcome.detail


# What it may not reach.


def test_nothing_of_the_corpus_is_in_reach_but_the_training_tokens_and_they_cannot_be_changed(bench):
    folder = bench.corpus.folder
    look = f"""
import glob, json, mmap, os
found = {{"corpus": os.path.exists({str(folder)!r}), "open": {{}}, "written": []}}
for path in glob.glob("/proc/self/fd/*"):
    try:
        name, size = os.readlink(path), os.stat(path).st_size
    except OSError:
        continue
    if "memfd" not in name and not os.path.isfile(path):
        continue
    found["open"][name.split()[0]] = size
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
        try:
            descriptor = os.open(path, flags)
        except OSError:
            continue
        for act in (
            lambda: os.pwrite(descriptor, b"xx", 0),
            lambda: os.ftruncate(descriptor, 0),
            lambda: os.ftruncate(descriptor, 10**6),
            lambda: mmap.mmap(descriptor, 0).__setitem__(0, 1),
        ):
            try:
                act()
                found["written"].append(name)
            except (OSError, ValueError):
                pass
tokens[0] = 9  # its own copy
print(json.dumps(found), flush=True)
"""
    outcome = bench.run(surface(train=look))
    found = json.loads(outcome.log.splitlines()[-1])
    assert outcome.status == "scored", outcome
    assert found == {"corpus": False, "open": {"/memfd:tokens": 40_000}, "written": []}
    assert os.pread(training_tokens(bench.corpus), 40_000, 0) == bench.train.astype("<u2").tobytes()


def test_the_scorers_memory_keeps_its_size(bench):
    shrink = """
import os
for name in os.listdir("/proc/self/fd"):
    try:
        if "memfd:shared" in os.readlink("/proc/self/fd/" + name):
            for size in (0, 2**30):
                try:
                    os.ftruncate(int(name), size)
                    print("resized", flush=True)
                except OSError:
                    print("kept", flush=True)
    except OSError:
        pass
"""
    outcome = bench.run(surface(logits=shrink))
    assert outcome.status == "scored"
    assert set(outcome.log.split()) == {"kept"}


def test_a_child_is_refused_where_processor_seconds_count(bench):
    outcome = bench.run(surface(train="import os; os.fork()"))
    assert outcome.status == "crash"
    assert "PermissionError" in outcome.detail


def test_a_child_that_outlives_its_experiment_does_not(bench):
    leave = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "98765"])
    os._exit(0)
"""

    def sleeps():
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes() == b"sleep\x0098765\x00":
                    return True
        return False

    seen = []
    outcome = bench.run(surface(train=leave), lambda curve: seen.append(sleeps()), clock="wall", seconds=2.0)
    assert outcome.status == "scored"
    assert any(seen)
    assert not sleeps()


# Ended from outside.


def test_a_strategy_may_prune(bench):
    seen = []

    def prune(curve):
        seen.append(curve)
        return len(curve) == 2

    outcome = bench.run(prune=prune, seconds=20.0)
    assert (outcome.status, outcome.score) == ("pruned", None)
    assert outcome.detail.startswith("stopped by the strategy at")
    assert [len(curve) for curve in seen] == [1, 2]
    assert outcome.curve == seen[-1]
    assert outcome.train_seconds < 15


def test_stopping_ends_it_at_once_without_an_outcome(bench):
    stop, ended = threading.Event(), []
    worker = Worker("bubblewrap", bench.task, stop)

    def stopping(curve):
        stop.set()
        ended.append(time.monotonic())
        return False

    with pytest.raises(Stopped):
        run_trial(bench.job(surface(), seconds=30.0), worker, stopping)
    assert time.monotonic() - ended[0] < 3
    assert worker.confined.process.returncode is not None


def test_what_a_pruning_rule_raises_ends_the_worker_too(bench):
    worker = bench.start(bench.task)

    def broken(curve):
        raise LookupError("a fault of ours")

    with pytest.raises(LookupError):
        run_trial(bench.job(seconds=30.0), worker, broken)
    assert worker.confined.process.returncode is not None


def test_a_worker_that_is_not_there_is_no_fault_of_the_experiment(bench):
    worker = bench.start(bench.task)
    os.kill(worker.confined.process.pid, 9)
    with pytest.raises(TrialError, match="a worker did not start: killed by SIGKILL"):
        run_trial(bench.job(), worker)


def test_too_small_a_split_is_said_before_anything_runs(bench, tmp_path):
    corpus = write_corpus(tmp_path / "small", vocab=VOCAB, sealed=[1] * 100)
    worker = bench.start(bench.task)
    job = replace(bench.job(splits=("sealed",)), corpus=corpus)
    began = time.monotonic()
    with pytest.raises(CorpusError, match=r"sealed of .* has 100 tokens"):
        run_trial(job, worker)
    assert time.monotonic() - began < 5
    assert worker.confined.process.returncode is not None

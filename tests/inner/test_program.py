"""Any other program as the surface: what it prints is its metric, and the sandbox and the budget are the same."""

import json
import os
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inner.executor import LocalExecutor
from inner.program import reported, run_program
from inner.task import Metric, load_task
from inner.trial import Job
from inner.watch import Over
from traces.errors import Stopped

TASK = """
name = "program"
surface = "run.py"
[metric]
name = "score"
source = "{source}"
pattern = {pattern}
[budget]
seconds = 30
clock = "{clock}"
memory_gib = 0.5
scratch_mib = 4
[constants]
"""
STDOUT = Metric(name="score", source="stdout", pattern=r"score: (\S+)")
JSON = Metric(name="score", source="json", pattern="result.score")


@pytest.fixture
def job(tmp_path):
    """Makes a job of a program's text."""
    (tmp_path / "run.py").write_text("")

    def make(text, metric=STDOUT, seed=3, clock="wall", **budget):
        form = TASK.format(source=metric.source, pattern=json.dumps(metric.pattern), clock=clock)
        (tmp_path / "program.toml").write_text(form)
        task = load_task(tmp_path / "program.toml")
        return Job(replace(task, budget=task.budget.model_copy(update=budget)), None, text, seed)

    return make


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not list(tmp_path.glob("bilevel-*"))


def outcome_of(job, tier="bubblewrap"):
    return run_program(job, tier, threading.Event())


# What it printed.


@pytest.mark.parametrize(
    ("metric", "printed", "score"),
    [
        (STDOUT, "score: 1.5", 1.5),
        (STDOUT, "score: 1\nscore: 2\nsome words", 2.0),
        (STDOUT, "score: -1e-3\n", -0.001),
        (JSON, '{"result": {"score": 2}}', 2.0),
        (JSON, '{"result": {"score": 1}}\nwords\n{"result": {"score": 2.5}}\n{broken', 2.5),
        (JSON, '  {"result": {"score": "0.5"}}  \n[1]\n3', 0.5),
        (Metric(source="json", pattern="score"), '{"score": 7}', 7.0),
    ],
)
def test_the_last_one_counts(metric, printed, score):
    assert reported(printed, metric) == score


@pytest.mark.parametrize(
    ("metric", "printed", "words"),
    [
        (STDOUT, "", "printed nothing that matches metric.pattern = 'score: "),
        (STDOUT, "score: nan", "score = 'nan' is not a finite number"),
        (STDOUT, "score: 1\nscore: inf", "not a finite number"),
        (STDOUT, "score: words", "'words' is not a finite number"),
        (STDOUT, "score: 1e999", "not a finite number"),
        (JSON, "", "has no result.score, or there is none"),
        (JSON, '{"result": 3}', "has no result.score"),
        (JSON, '{"result": {"score": 1}}\n{"other": 1}', "has no result.score"),
        (JSON, '{"result": {"score": NaN}}', "not a finite number"),
        (JSON, '{"result": {"score": true}}', "not a finite number"),
        (JSON, '{"result": {"score": null}}', "None is not a finite number"),
        (JSON, '{"result": {"score": [1]}}', "not a finite number"),
        (JSON, '{"result": {"score": 1' + "0" * 400 + "}}", "not a finite number"),
        (JSON, '{"a":' * 10**5, "there is none"),
    ],
)
def test_what_is_no_finite_number_is_a_crash(metric, printed, words):
    with pytest.raises(Over) as caught:
        reported(printed, metric)
    assert caught.value.status == "crash"
    assert words in caught.value.detail
    assert "\n" not in caught.value.detail


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=50))
def test_any_number_comes_back_as_it_was_printed(value, words):
    assert reported(f"{words}\nscore: {value!r}\n", STDOUT) == value
    assert reported(f"{words}\n{json.dumps({'result': {'score': value}})}\n", JSON) == value


# How it runs.


@pytest.mark.parametrize("tier", ["bubblewrap", "none"])
def test_a_program_runs_as_it_is_with_its_seed_and_nothing_else(job, tier, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    text = """
import json, os, sys
print(json.dumps({
    "name": __name__, "file": os.path.basename(__file__), "arguments": sys.argv[1:],
    "secret": "OPENAI_API_KEY" in os.environ, "result": {"score": int(os.environ["BILEVEL_SEED"])},
}))
"""
    outcome = outcome_of(job(text, JSON, seed=11), tier)
    assert (outcome.status, outcome.score, outcome.detail) == ("scored", 11.0, "")
    assert json.loads(outcome.log) == {
        "name": "__main__", "file": "run.py", "arguments": [], "secret": False, "result": {"score": 11},
    }  # fmt: skip
    assert 0 < outcome.train_seconds <= outcome.wall_seconds
    assert outcome.training_wall_seconds == outcome.train_seconds
    assert (outcome.sealed_score, outcome.steps, outcome.curve, outcome.probes) == (None, None, (), ())
    assert outcome.device == "cpu"


def test_the_score_is_found_behind_much_output_and_the_log_is_its_tail(job):
    outcome = outcome_of(job("print('score: 4'); print('x' * 2**19)"))
    assert outcome.score == 4.0
    assert len(outcome.log) == 16 * 2**10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print('score: 1'); raise ValueError('but no')", "ValueError: but no"),
        ("print('score: 1', flush=True); import os; os._exit(2)", "exit status 2: score: 1"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("", "printed nothing that matches"),
        ("print('score: nan')", "score = 'nan' is not a finite number"),
        ("open('/tmp/x', 'wb').write(b'x' * 2**23)", "OSError: [Errno 28] No space left on device"),
        ("import socket; socket.create_connection(('1.1.1.1', 53), 5)", "Network is unreachable"),
        ("x = b'x' * 2**30; import time; time.sleep(60)", "the limit is budget.memory_gib = 0.5"),
    ],
)
def test_a_program_that_fails_gives_no_score_and_one_line(job, text, words):
    outcome = outcome_of(job(text))
    assert (outcome.status, outcome.score) == ("crash", None)
    assert words in outcome.detail
    assert "\n" not in outcome.detail


def test_the_budget_is_all_the_time_that_it_has(job):
    began = time.monotonic()
    text = "print('score: 1', flush=True); import time; time.sleep(600)"
    outcome = outcome_of(job(text, seconds=0.5, grace_seconds=0.2))
    assert (outcome.status, outcome.score) == ("timeout", None)
    assert outcome.detail == "was still running after 0.7 s (budget.seconds and its grace)"
    assert outcome.train_seconds >= 0.7
    assert "score: 1" in outcome.log
    assert time.monotonic() - began < 20


def test_a_budget_in_processor_seconds_counts_those_of_its_children(job):
    text = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "while True: pass"])
"""
    outcome = outcome_of(job(text, clock="cpu", seconds=0.4, grace_seconds=0.1))
    assert (outcome.status, outcome.detail[:32]) == ("timeout", "was still running after 0.5 cpu s"[:32])
    idle = outcome_of(
        job("import time; time.sleep(0.5); print('score: 1')", clock="cpu", seconds=0.4, grace_seconds=0.1)
    )
    assert idle.status == "scored"
    assert idle.train_seconds < 0.5 < idle.training_wall_seconds


def test_it_can_be_stopped(job):
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        run_program(job("import time; time.sleep(600)"), "bubblewrap", stop)
    assert time.monotonic() - began < 20


def test_an_executor_runs_it_and_warms_nothing(job):
    made = job("print('score: 2')")
    with LocalExecutor(made.task, slots=1) as executor:
        assert executor.run(made).score == 2.0
        assert not executor._warm

"""The inner loop, for real but for the training: a program that scores at once stands in for it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import git
import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

import inner.strategy
from inner.executor import LocalExecutor
from inner.loop import Plan, run_inner
from inner.model import load_model
from inner.record import Bench, now
from inner.task import load_task
from traces.store import Store

TOY = Path(__file__).parent.parent / "tasks" / "toy.toml"
SEED = Path(inner.strategy.__file__).read_text()
COLUMNS = (
    "index, parent, status, change, constants, moves, score, hypothesis, commit, diff, surface, step, detail, "
    "significant"
)


def strategy(propose="return ask(Request())[0]", accept="return candidate.score < history.best.score", more=""):
    body = textwrap.dedent(
        """
        from inner.history import *

        class Strategy:
            def __init__(self, task, rng):
                self.task, self.rng = task, rng

            def propose(self, history, ask):
                {propose}

            def accept(self, history, candidate):
                {accept}

            {more}
        """
    )
    return body.format(propose=propose, accept=accept, more=more)


def only(constants, parent=None):
    return strategy(f"return Proposal(Change({constants!r}), 'because', {parent!r})")


class Desk:
    """A bench to run on, and what it shows."""

    def __init__(self, lab):
        self.lab = lab
        self.task = load_task(TOY)

    def run(self, source=SEED, run="r", experiments=4, seed=1, store=Store, **plan):
        with (
            store.open(self.lab) as opened,
            LocalExecutor(self.task, 1) as executor,
            SqliteSaver.from_conn_string(str(self.lab / "checkpoints.sqlite")) as checkpoints,
        ):
            if not opened.rows("SELECT id FROM study"):
                study = {"id": "s", "command": "run", "task": "toy", "config": {}, "seed": 1, "noise": 0.5}
                opened.put("study", status="running", created=now(), **study)
            model = load_model("prior")
            bench = Bench(opened, self.lab, "s", self.task, None, executor, model, "Improve it.", lambda *_: None)
            run_inner(bench, Plan(run, "level1", seed, experiments, source, **plan), checkpoints)
            return opened.rows(f"SELECT {COLUMNS} FROM experiment WHERE run = ? ORDER BY index", run)

    def rows(self, sql, *parameters):
        with Store.open(self.lab) as store:
            return store.rows(sql, *parameters)

    def repository(self, run="r"):
        return git.Repo(self.lab / "runs" / run)


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "lab")


def test_the_baseline_comes_first_and_unchanged(desk):
    first = desk.run(experiments=2)[0]
    assert (first["status"], first["parent"], first["moves"]) == ("baseline", None, [])
    assert first["score"] == (4 - 1) ** 2 + (0.5 - 2) ** 2


def test_an_experiment_is_one_row_and_one_commit_with_its_surface(desk):
    rows = desk.run(experiments=6)
    assert [row["index"] for row in rows] == list(range(6))
    repository = desk.repository()
    for row in rows:
        commit = repository.commit(f"refs/experiments/{row['index']}")
        assert commit.hexsha == row["commit"]
        surface = repository.git.show(f"{commit.hexsha}:toy.py")
        for name, value in row["constants"].items():
            assert f"{name} = {value!r}".replace("'", '"') in surface


def test_a_keep_moves_the_branch_and_a_discard_does_not(desk):
    rows = desk.run(only({"LEFT": 2.0}), experiments=2)
    assert rows[1]["status"] == "keep"
    assert desk.repository().head.commit.hexsha == rows[1]["commit"]
    rows = desk.run(only({"LEFT": 8.0}), run="r2", experiments=2)
    assert rows[1]["status"] == "discard"
    assert desk.repository("r2").head.commit.hexsha == rows[0]["commit"]


def test_the_next_change_builds_on_the_best(desk):
    source = strategy("return Proposal(Change([{'LEFT': 2.0}, {'LEFT': 8.0}, {'RIGHT': 1.0}][len(history) - 1]))")
    rows = desk.run(source, experiments=4)
    assert [row["parent"] for row in rows] == [None, 0, 1, 1]
    assert rows[3]["constants"]["LEFT"] == 2.0


def test_a_strategy_may_branch_from_any_experiment(desk):
    rows = desk.run(only({"RIGHT": 1.0}, parent=0), experiments=3)
    assert [row["parent"] for row in rows] == [None, 0, 0]


def test_only_a_keep_beyond_twice_the_noise_floor_is_significant(desk):
    source = strategy("return Proposal(Change([{'LEFT': 3.95}, {'LEFT': 2.0}][len(history) - 1]))")
    assert [row["significant"] for row in desk.run(source, experiments=3)] == [None, False, True]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (only({"LEFT": 99.0}), "99"),
        (only({"MIDDLE": 1.0}), "MIDDLE"),
        (only({}), "changes nothing"),
        (only({"LEFT": 2.0}, parent=7), "no experiment 7"),
        (strategy("raise ValueError('out of ideas')"), "out of ideas"),
        (strategy("return 3"), "int"),
    ],
    ids=["outside the space", "unknown constant", "no change", "no such parent", "raises", "not a proposal"],
)
def test_what_cannot_be_run_is_refused_and_the_loop_goes_on(desk, source, says):
    rows = desk.run(source, experiments=3)
    assert [row["status"] for row in rows] == ["baseline", "refused", "refused"]
    assert says in rows[1]["detail"]


def test_a_crash_is_a_row_with_its_last_words(desk):
    rows = desk.run(only({"KIND": "bad"}), experiments=3)
    assert [row["status"] for row in rows[1:]] == ["crash", "crash"]
    assert "this kind does not run" in rows[1]["detail"]


def test_a_strategy_that_fails_to_decide_costs_its_experiment_only(desk):
    source = strategy("return Proposal(Change({'LEFT': 2.0 - 0.1 * len(history)}))", "raise KeyError('lost')")
    rows = desk.run(source, experiments=3)
    assert [row["status"] for row in rows[1:]] == ["discard", "discard"]
    assert "lost" in rows[1]["detail"]


def test_the_functions_that_ran_are_in_the_record(desk):
    desk.run(strategy("return self.idea()", more="def idea(self):\n        return Proposal(Change({'LEFT': 2.0}))"))
    calls = desk.rows("SELECT step, functions FROM strategy_call WHERE run = 'r' AND experiment = 1 ORDER BY step")
    assert {call["step"]: call["functions"] for call in calls} == {
        "accept": ["Strategy.accept"],
        "propose": ["Strategy.idea", "Strategy.propose"],
    }


def test_the_same_seed_gives_the_same_proposals_and_another_seed_others(tmp_path):
    changes = [[row["change"] for row in Desk(tmp_path / name).run(experiments=8, seed=seed)]
               for name, seed in (("a", 3), ("b", 3), ("c", 4))]  # fmt: skip
    assert changes[0] == changes[1]
    assert changes[0] != changes[2]


def test_a_fork_begins_with_the_history_of_its_origin_and_does_not_run_it_again(desk):
    first = desk.run(experiments=3)
    second = desk.run(run="fork", experiments=5, forked_from="r", forked_at=3)
    assert [{k: v for k, v in row.items()} for row in second[:3]] == first
    inherited = desk.rows("SELECT index FROM experiment WHERE run = 'fork' AND inherited ORDER BY index")
    assert [row["index"] for row in inherited] == [0, 1, 2]
    assert set(desk.repository("fork").git.for_each_ref("refs/experiments", format="%(objectname)").split()) == {
        row["commit"] for row in second
    }


def test_a_shadow_that_decides_alike_differs_nowhere(desk):
    desk.run(experiments=6, shadow=SEED)
    assert {row["differs"] for row in desk.rows("SELECT differs FROM strategy_call WHERE step <> 'start'")} == {False}


@pytest.mark.parametrize(
    ("other", "step"),
    [
        (strategy("return ask(Request(constants=('KIND',)))[0]"), "propose"),
        (strategy(accept="return candidate.score >= history.best.score"), "accept"),
    ],
    ids=["asks otherwise", "accepts otherwise"],
)
def test_a_shadow_that_would_decide_otherwise_is_seen(desk, other, step):
    desk.run(experiments=4, shadow=other)
    calls = desk.rows("SELECT step, differs FROM strategy_call WHERE differs IS NOT NULL")
    assert step in {call["step"] for call in calls if call["differs"]}
    assert {call["step"] for call in calls if call["differs"]} <= {step}


def test_a_shadow_changes_nothing(tmp_path):
    other = strategy("return ask(Request(constants=('KIND',)))[0]")
    alone, watched = (
        Desk(tmp_path / name).run(experiments=6, shadow=shadow) for name, shadow in (("a", None), ("b", other))
    )
    for row in (*alone, *watched):
        del row["commit"]
    assert alone == watched


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_loop import Desk
from traces.store import Store

class Mortal(Store):
    left = {puts}

    def put(self, table, **row):
        Mortal.left -= 1
        if Mortal.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().put(table, **row)

Desk(Path({lab!r})).run(experiments=4, store=Mortal)
"""


@pytest.mark.parametrize("puts", range(1, 46, 4))
def test_a_kill_at_any_write_loses_nothing_and_runs_nothing_twice(tmp_path, puts):
    whole = Desk(tmp_path / "whole").run(experiments=4)
    lab = tmp_path / "lab"
    script = KILLED.format(tests=str(Path(__file__).parent), puts=puts, lab=str(lab))
    subprocess.run([sys.executable, "-c", script], check=False, timeout=120)
    desk = Desk(lab)
    resumed = desk.run(experiments=4)
    plain = [{k: v for k, v in row.items() if k != "commit"} for row in (*whole, *resumed)]
    assert plain[:4] == plain[4:]
    assert [row["commit"] for row in resumed] == [
        desk.repository().commit(f"refs/experiments/{index}").hexsha for index in range(4)
    ]
    status = desk.rows("SELECT status FROM run WHERE id = 'r'")
    assert [row["status"] for row in status] == ["done"]

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inner.history import Block, Change, History, Proposal, TaskView, Value
from inner.sandbox import tier
from outer.catalogue import compose
from outer.check import Check, check, check_from, fault, read
from outer.rehearsal import Rehearsal, only_failures

HEAD = """
import random

from inner.history import Ask, Change, Experiment, History, Proposal, Request, TaskView


class Strategy:
    def __init__(self, task: TaskView, rng: random.Random) -> None:
        self.task = task
        self.rng = rng
        self.memory = []
"""
PROPOSE = """
    def propose(self, history: History, ask: Ask) -> Proposal:
        ideas = ask(Request())
        return ideas[-1] if ideas else Proposal(Change())
"""
ACCEPT = """
    def accept(self, history: History, candidate: Experiment) -> bool:
        return history.gain(candidate.score, history.best.score) > 0.02
"""
Grow = Callable[..., History]
Checked = Callable[[str], Check]


@pytest.fixture
def checked(task: TaskView, recorded: History, seed_source: str) -> Checked:
    def run(source: str) -> Check:
        return check(source, seed_source, task, [recorded], tier())

    return run


def failed(found: Check) -> str:
    """The one clause that does not hold."""
    faults = [finding.name for finding in found.findings if not finding.ok]
    assert len(faults) == 1, found.feedback
    assert not found.ok
    return faults[0]


def test_a_strategy_that_keeps_the_contract_passes_every_clause(checked: Checked) -> None:
    found = checked(HEAD + PROPOSE + ACCEPT)
    assert found.ok, found.feedback
    assert [finding.name for finding in found.findings] == [
        "parses",
        "imports",
        "names",
        "interface",
        "budget of one",
        "recorded histories",
        "only failures",
        "silent model",
        "resumes",
        "differs",
    ]
    assert 0 < found.differing < found.compared
    assert check_from(json.loads(json.dumps(dataclasses.asdict(found)))) == found


# What the source shows.


@pytest.mark.parametrize(
    "source", ["def f(:", "x = 1\n  y = 2", "x = '\x00'", "(" * 5000, "#" * 100_001, "1" + "+1" * 90, "-" * 99_000]
)
def test_what_is_not_python_is_named_and_nothing_is_run(source: str) -> None:
    (finding,) = read(source)
    assert (finding.name, finding.ok) == ("parses", False)
    assert finding.detail


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(source: str) -> None:
    assert read(source)


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "import os.path",
        "import math, socket",
        "import collections.abc, sys",
        "from subprocess import run",
        "from . import history",
        "from inner import host",
        "from inner.host import Host",
        "from random import *",
        "from random import _os",
        "from dataclasses import sys",
        "import random\nx = random._os",
        "import dataclasses as d\nx = d.sys.modules",
        "def f():\n    import os",
    ],
)
def test_an_import_that_a_strategy_does_not_need_is_refused(line: str) -> None:
    assert "imports" in [finding.name for finding in read(line + HEAD + PROPOSE + ACCEPT) if not finding.ok]


@pytest.mark.parametrize(
    "line",
    [
        "import math, random, statistics, itertools, collections, dataclasses, typing",
        "import collections.abc\nx = collections.abc.Mapping",
        "from collections import Counter, abc, defaultdict, deque",
        "from math import exp\nx = exp(1)",
        "from inner.history import Constant, moves_between, FAILED",
        "from typing import Any, Literal",
    ],
)
def test_an_import_that_a_strategy_may_need_is_allowed(line: str) -> None:
    assert [finding for finding in read(line + HEAD + PROPOSE + ACCEPT) if not finding.ok] == []


@pytest.mark.parametrize(
    "line",
    [
        "x = __import__('os')",
        "x = eval('1')",
        "exec('x = 1')",
        "x = open('/etc/passwd')",
        "x = compile('1', '', 'eval')",
        "x = globals()",
        "x = ().__class__.__base__.__subclasses__()",
        "x = __builtins__",
        "x = getattr(1, 'a' + 'b')",
        "x = getattr(1, '__class__')",
        "run = getattr",
        "print('hello')",
    ],
)
def test_a_name_that_reaches_out_is_refused(line: str) -> None:
    faults = [finding for finding in read(line + HEAD + PROPOSE + ACCEPT) if not finding.ok]
    assert [finding.name for finding in faults] == ["names"]
    assert "line 1: " in faults[0].detail


def test_a_public_attribute_may_be_looked_up_by_name() -> None:
    assert all(finding.ok for finding in read("x = getattr(1, 'real', None)" + HEAD + PROPOSE + ACCEPT))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "found 0"),
        (HEAD + PROPOSE, "must define accept"),
        (HEAD + ACCEPT, "must define propose"),
        (HEAD + ACCEPT + "    def propose(self, history): ...", "propose must take 2 arguments"),
        (HEAD + ACCEPT + "    def propose(self, history, ask, more): ...", "propose must take 2 arguments"),
        (HEAD + ACCEPT + "    def propose(self, history, ask, *, more): ...", "propose must take 2 arguments"),
        (HEAD + ACCEPT + "    async def propose(self, history, ask): ...", "plain method"),
        (HEAD + ACCEPT + "    @staticmethod\n    def propose(history, ask, x): ...", "plain method"),
        (HEAD + PROPOSE + ACCEPT + "    def observe(self): ...", "observe must take 1 arguments"),
    ],
)
def test_a_method_with_another_signature_is_refused(source: str, words: str) -> None:
    (fault_found,) = [finding for finding in read(source) if not finding.ok]
    assert fault_found.name == "interface"
    assert words in fault_found.detail


def test_a_method_may_take_what_it_is_not_given() -> None:
    source = HEAD + ACCEPT + "    def propose(self, history, ask, *rest, more=1): return Proposal(Change())"
    assert all(finding.ok for finding in read(source))


# What the rehearsal shows.


@pytest.mark.parametrize(
    ("clause", "method", "words"),
    [
        ("budget of one", "return 1 / 0", "ZeroDivisionError"),
        ("budget of one", "return 'DEPTH'", "must return a Proposal"),
        ("budget of one", "return Proposal(Change({'DEPTH': 99}))", "not allowed by the space"),
        ("budget of one", "return Proposal(Change({'WIDTH': 1}))", "WIDTH is not in the space"),
        ("budget of one", "return Proposal(Change({'DEPTH': 4}))", "it changes nothing"),
        ("budget of one", "return Proposal(Change(), '', len(history))", "to branch from"),
        ("budget of one", "return Proposal(Change({'DEPTH': 5}, text='x'))", "one kind"),
        ("budget of one", "return [ask(Request()) for _ in range(9)][0][0]", "more than 8 times"),
        ("budget of one", "return self.rng.choice(range(self.task.experiments - 2))", "IndexError"),
        ("recorded histories", "return Proposal(Change({'DEPTH': (6, 7)[len(history) - 1]}))", "IndexError"),
        (
            "only failures",
            "assert history.scored[1:] or len(history) < 3\n        return ask(Request())[0]",
            "Assertion",
        ),
        ("silent model", "return ask(Request())[0]", "IndexError"),
    ],
)
def test_a_strategy_that_breaks_down_somewhere_is_told_where(
    clause: str, method: str, words: str, checked: Checked
) -> None:
    found = checked(HEAD + ACCEPT + f"    def propose(self, history, ask):\n        {method}\n")
    assert failed(found) == clause
    assert words in found.feedback[0]


def test_a_strategy_that_does_not_start_is_told_so(checked: Checked) -> None:
    found = checked("raise RuntimeError('no')" + HEAD + PROPOSE + ACCEPT)
    assert failed(found) == "budget of one"
    assert "RuntimeError: no" in found.feedback[0]


def test_a_slow_strategy_is_told_the_limit(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outer.check.CALL_SECONDS", 0.3)
    found = checked(HEAD + ACCEPT + "    def propose(self, history, ask):\n        while True:\n            pass\n")
    assert failed(found) == "budget of one"
    assert "took more than 0.3 s" in found.feedback[0]


@pytest.mark.parametrize(
    "method",
    [
        # Chance of its own, that no seed reaches.
        "n = id(object()) // 16 % 97 + random.SystemRandom().randrange(97)\n"
        "        return Proposal(Change({'MATRIX_LR': 0.1 + n / 1000}))",
        # A memory that is filled where it is not replayed.
        "self.memory.append(1)\n        return Proposal(Change({'MATRIX_LR': 0.1 + len(self.memory) / 1000}))",
    ],
)
def test_a_strategy_that_decides_otherwise_when_it_is_started_again_fails(method: str, checked: Checked) -> None:
    found = checked(HEAD + ACCEPT + f"    def propose(self, history, ask):\n        {method}\n")
    assert failed(found) == "resumes"


def test_a_memory_that_is_filled_by_observing_resumes(checked: Checked) -> None:
    source = (
        HEAD
        + ACCEPT
        + (
            "    def observe(self, experiment):\n        self.memory.append(experiment.index)\n"
            "    def propose(self, history, ask):\n"
            "        assert self.memory == [experiment.index for experiment in history]\n"
            "        return Proposal(Change({'MATRIX_LR': 0.1 + len(self.memory) / 1000 + self.rng.random() / 10}))\n"
        )
    )
    assert checked(source).ok


def test_a_strategy_that_decides_as_the_incumbent_changes_nothing(task: TaskView, recorded: History) -> None:
    incumbent = compose(["tabu"])
    pasted = incumbent + "\n\nclass Annealing:\n    def accept(self, history, candidate):\n        return True\n"
    found = check(pasted, incumbent, task, [recorded], tier())
    assert failed(found) == "differs"
    assert "changes no decision" in found.feedback[0]
    assert (found.differing, found.compared > 10) == (0, True)


def test_other_words_for_the_same_proposal_are_no_other_decision(
    task: TaskView, recorded: History, seed_source: str
) -> None:
    """Naming the best as the parent, which is what happens anyway, and another hypothesis."""
    method = (
        "    def propose(self, history, ask):\n        ideas = ask(Request())\n"
        "        change = ideas[0].change if ideas else Change()\n"
        "        return Proposal(change, 'other words', history.best.index)\n"
        "    def accept(self, history, candidate):\n"
        "        return history.gain(candidate.score, history.best.score) > 0\n"
    )
    assert failed(check(HEAD + method, seed_source, task, [recorded], tier())) == "differs"


def test_a_strategy_that_guides_its_model_is_not_taken_for_idle(checked: Checked) -> None:
    method = PROPOSE.replace("Request()", "Request(guidance='Think of the batch size.')")
    source = HEAD + method + ACCEPT.replace("0.02", "0")
    assert checked(source).ok


def test_every_recorded_history_is_led_through(task: TaskView, recorded: History, grow: Grow, seed_source: str) -> None:
    other = grow(({"DEPTH": 12}, 0.9, "keep"))
    source = (
        HEAD
        + ACCEPT
        + (
            "    def propose(self, history, ask):\n"
            "        assert history.best.constants['DEPTH'] < 12, 'too deep'\n        return Proposal(Change())\n"
        )
    )
    assert check(source, seed_source, task, [recorded], tier()).ok
    found = check(source, seed_source, task, [recorded, other], tier())
    assert "too deep" in found.feedback[0]


# What strategies are rehearsed with.


def test_the_rehearsal_s_model_answers_the_same_question_alike(task: TaskView, recorded: History) -> None:
    from inner.history import Request

    first = Rehearsal(task, recorded)(Request(candidates=3))
    assert Rehearsal(task, recorded)(Request(candidates=3)) == first
    assert Rehearsal(task, recorded)(Request())[0] == first[0]
    assert Rehearsal(task, recorded, silent=True)(Request()) == ()


def test_a_history_of_failures_holds_every_kind_and_no_score(task: TaskView, grow: Grow) -> None:
    history = only_failures(task, grow())
    assert {e.status for e in history} == {"baseline", "crash", "timeout", "invalid", "pruned", "refused"}
    assert len(history.scored) == 1
    assert all(e.moves for e in history if e.failed and e.status != "refused")


def test_a_proposal_by_blocks_or_text_is_not_at_fault(task: TaskView, grow: Grow) -> None:
    history = grow()
    for change in (Change(), Change(blocks=(Block("a", "b"),)), Change(text="x = 1")):
        assert fault(Proposal(change, parent=0), task, history) is None
    value: dict[str, Value] = {"DEPTH": 5}
    assert fault(Proposal(Change(value, blocks=(Block("a", "b"),))), task, history) is not None

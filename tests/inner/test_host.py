"""A strategy in its own process: what it gets, what is noted, and what happens when it breaks its contract."""

import os
import sys
import textwrap
import time
from contextlib import closing

import pytest

from inner.history import (
    Avoid,
    Change,
    Constant,
    CurvePoint,
    Experiment,
    History,
    Move,
    Proposal,
    Request,
    TaskView,
)
from inner.host import MOST_CANDIDATES, Host
from inner.sandbox import tier
from traces.errors import StrategyError

TASK = TaskView(
    "tiny", "val_bpb", "minimize", 5.0, 30,
    {"LR": Constant("LR", "float", 0.001, 1.0, "log"), "BETAS": Constant("BETAS", "choice", choices=((0.8, 0.9), "x"))},
)  # fmt: skip
HEAD = "from inner.history import *\nimport random\n"


def strategy(propose="return Proposal(Change())", accept="return True", init="", more=""):
    """A strategy whose methods do what is given."""

    def method(head, body):
        return textwrap.indent(f"def {head}:\n" + textwrap.indent(body, "    "), "    ") + "\n"

    return (
        f"{HEAD}\nclass Strategy:\n"
        + method("__init__(self, task, rng)", f"self.task, self.rng, self.seen = task, rng, []\n{init}")
        + method("propose(self, history, ask)", propose)
        + method("accept(self, history, candidate)", accept)
        + textwrap.indent(textwrap.dedent(more), "    ")
    )


def say(expression):
    """The body of a `propose` that gives a value back as its hypothesis."""
    return f"return Proposal(Change(), repr({expression}))"


OBSERVES = "def observe(self, experiment): self.seen.append(experiment.index)"


def hosted(source, seed=0, where=None, seconds=60.0):
    return closing(Host(source, TASK, seed, where or tier(), seconds))


def experiment(index, status="keep", score=1.0):
    change = Change({"LR": 0.1 * (index + 1), "BETAS": (0.8, 0.9)})
    return Experiment(
        index, index - 1 if index else None, change, "words", dict(change.constants),
        (Move("LR", "up", None, 0.1),), "baseline" if index == 0 else status, score, 1.0,
    )  # fmt: skip


def history(length, noise=0.01, direction="minimize"):
    return History(tuple(experiment(index) for index in range(length)), noise, direction)


def silent(request):
    return ()


def told(host, length=2, ask=silent):
    """What a strategy that gives values back says."""
    return eval(host.propose(history(length), ask).answer.hypothesis)


# What it gets and gives.


def test_it_is_given_the_task_the_history_and_nothing_is_lost_on_the_way():
    with hosted(
        strategy(say("(task_is, history, history.noise, history.direction)").replace("task_is", "self.task"))
    ) as h:
        names = h.propose(history(3, None, "maximize"), silent).answer.hypothesis
    assert names == repr((TASK, history(3, None, "maximize"), None, "maximize"))


def test_a_proposal_comes_back_as_it_was_made():
    made = "Proposal(Change({'LR': 0.1, 'BETAS': (0.8, 0.9)}, (Block('a', 'b'),), 'text \\u2264'), 'why', 1)"
    with hosted(strategy(f"return {made}")) as host:
        assert host.propose(history(2), silent).answer == eval(
            made, globals() | {"Block": __import__("inner.history").history.Block}
        )


def test_a_candidate_is_accepted_or_not():
    with hosted(strategy(accept="return candidate.score < history.best.score")) as host:
        assert host.accept(history(2), experiment(2, "discard", 0.5)).answer is True
        assert host.accept(history(2), experiment(2, "discard", 1.5)).answer is False


def test_pruning_sees_the_curve():
    more = "def prune(self, history, curve): return len(curve) == 2 and curve[1].loss > 3 and len(history) == 1"
    with hosted(strategy(more=more)) as host:
        assert (host.prunes, host.observes) == (True, False)
        points = (CurvePoint(1, 0.1, 9.0), CurvePoint(2, 0.2, 4.0))
        assert host.prune(history(1), points[:1]).answer is False
        assert host.prune(history(1), points).answer is True


def test_what_it_has_observed_it_remembers():
    with hosted(strategy(say("self.seen"), more=OBSERVES)) as host:
        assert (host.prunes, host.observes) == (False, True)
        for length in (1, 2, 3):
            host.observe(history(length), experiment(length - 1))
        assert told(host) == [0, 1, 2]


def test_the_functions_that_ran_are_noted_and_only_those_of_the_module():
    source = (
        strategy(
            "return self.pick(history)",
            more="""
        def pick(self, history):
            return helper(lambda: Proposal(Change(), words({})))

        def never(self): pass
        """,
        )
        + "\ndef helper(make):\n    return make()\n\ndef words(value):\n    import json\n    return json.dumps(value)\n"
    )
    with hosted(source) as host:
        assert host.started.functions == ("Strategy.__init__",)
        call = host.propose(history(1), silent)
        assert call.functions == ("Strategy.pick", "Strategy.propose", "helper", "words")
        assert 0 < call.seconds < 60
        assert host.accept(history(1), experiment(1)).functions == ("Strategy.accept",)


def test_a_model_is_asked_through_the_host_and_its_time_is_not_the_strategys():
    asked = []

    def ask(request):
        asked.append(request)
        time.sleep(1.0)
        return (Proposal(Change({"LR": 0.5}), "an idea"),)

    source = strategy(
        "return ask(Request(('LR',), (Avoid('LR', 'up'),), 3, 'words', 2, 1))[0]",
    )
    with hosted(source, seconds=0.9) as host:
        call = host.propose(history(2), ask)
    assert call.answer == Proposal(Change({"LR": 0.5}), "an idea")
    assert asked == [Request(("LR",), (Avoid("LR", "up"),), 3, "words", 2, 1)]
    assert call.seconds < 0.9


# The same again.

DRAWS = say("(self.order, self.rng.random(), random.random(), list({str(i) for i in range(30)}), hash('x'))")
INIT = "self.order = rng.sample(range(100), 5)"


def test_the_same_seed_draws_the_same_in_every_process_and_another_seed_does_not():
    drawn = []
    for seed in (1, 1, 2):
        with hosted(strategy(DRAWS, init=INIT), seed) as host:
            drawn.append(told(host))
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0][:3], drawn[2][:3], strict=True))


def test_each_call_draws_anew_but_always_the_same():
    with hosted(strategy(DRAWS, init=INIT)) as host:
        first, second, again = told(host, 1), told(host, 2), told(host, 1)
    assert first[1:3] != second[1:3]
    assert first == again


def test_after_a_failure_it_goes_on_as_if_nothing_had_happened():
    """The module starts afresh, observes all that it had observed, and decides as it would have."""
    broken = "if len(history) == 3: raise ValueError('once')\n"
    observes = "def observe(self, experiment): self.seen.append((experiment.index, self.rng.random()))"
    with hosted(strategy(broken + say("(self.seen, self.rng.random())"), more=observes)) as host:
        for length in (1, 2, 3):
            host.observe(history(length), experiment(length - 1))
        before = told(host, 2)
        with pytest.raises(StrategyError, match="once"):
            host.propose(history(3), silent)
        assert told(host, 2) == before
        host.observe(history(4), experiment(3))
        assert [index for index, _ in told(host, 4)[0]] == [0, 1, 2, 3]
    assert len(before[0]) == 3


def test_what_it_failed_to_observe_it_is_not_shown_again():
    """Else it would fail at every start, and the run with it."""
    more = """
        def observe(self, experiment):
            if experiment.index == 1: raise ValueError("not this one")
            self.seen.append(experiment.index)
    """
    with hosted(strategy(say("self.seen"), more=more)) as host:
        host.observe(history(1), experiment(0))
        with pytest.raises(StrategyError, match="not this one"):
            host.observe(history(2), experiment(1))
        assert told(host) == [0]
        host.observe(history(3), experiment(2))
        assert told(host, 3) == [0, 2]


def test_a_history_that_was_rewound_or_forked_is_seen_as_it_is():
    other = History((experiment(0), experiment(1, "discard", 7.0), experiment(2, "keep", 0.1)), 0.01)
    with hosted(strategy(say("[(e.index, e.status, e.score) for e in history]"))) as host:
        for seen in (history(4), history(2), history(5), other, history(3), History()):
            answer = host.propose(seen, silent).answer.hypothesis
            assert eval(answer) == [(e.index, e.status, e.score) for e in seen]


# A contract that is broken.


def refusal(source, act, seconds=60.0):
    """The one line of an error, and that the next call is answered."""
    with hosted(source, seconds=seconds) as host:
        with pytest.raises(StrategyError) as caught:
            act(host)
        assert host.accept(history(1), experiment(1)).answer is True
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def proposing(host):
    host.propose(history(2), lambda request: (Proposal(Change()),))


FORGED = "import os, sys\nos.write(int(sys.argv[1]), {})\nreturn Proposal(Change())"


def forged(line):
    """A strategy that answers the host itself, before its guest does."""
    return FORGED.format(repr(line + b"\n"))


BROKEN = {
    "raises": ("raise ValueError('many\\nlines')", "propose failed: ValueError: many lines (line 9 of the strategy)"),
    "exits": ("raise SystemExit", "propose ended the strategy's process"),
    "dies": ("import os; os.kill(os.getpid(), 9)", "propose ended the strategy's process"),
    "nothing": ("return None", "propose must return a Proposal, got NoneType"),
    "no change": ("return Proposal(None)", "no proposal"),
    "no number": ("return Proposal(Change(), '', 'one')", "no proposal: ValueError"),
    "endless": ("return Proposal(Change(), '', float('inf'))", "no proposal: OverflowError"),
    "what cannot be sent": ("return Proposal(Change({'LR': {1, 2}}))", "TypeError"),
    "nested": ("x = []\nfor _ in range(10**4): x = [x]\nreturn Proposal(Change({'LR': x}))", "RecursionError"),
    "half a letter": ("return Proposal(Change(), '\\ud800')", "UnicodeEncodeError"),
    "huge": ("return Proposal(Change(), 'x' * 5 * 2**20)", "more than 4 MiB"),
    "garbage": (forged(b"garbage"), "broke the protocol"),
    "no object": (forged(b"[1]"), "broke the protocol"),
    "deep garbage": (forged(b"[" * 10**5), "broke the protocol"),
    "half an answer": (forged(b"{}"), "broke the protocol"),
    "no seconds": (forged(b'{"answer": 1, "functions": 3, "seconds": []}'), "broke the protocol"),
    "no request": (forged(b'{"ask": 3}'), "no request"),
    "no question": ("ask('what next?')", "ask takes a Request, got str"),
    "no candidates": ("ask(Request(candidates=0))", "asked for 0 candidates"),
    "too many": ("ask(Request(candidates=10**9))", f"asked for 1000000000 candidates: ask for 1 to {MOST_CANDIDATES}"),
    "too long a number": ("ask(Request(candidates=10**4000))", "candidates"),
    "memory": ("x = bytearray(2**31)", "MemoryError"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_answer_costs_the_call_and_the_next_one_works(case):
    propose, words = BROKEN[case]
    assert words in refusal(strategy(propose), proposing)


def test_a_call_has_a_time_limit():
    for body in (
        "while True: pass",
        "import time; time.sleep(600)",
        "while True:\n    try: raise SystemExit\n    except BaseException: pass",
    ):
        began = time.monotonic()
        assert refusal(strategy(body), proposing, seconds=1.5) == "propose took more than 1.5 s"
        assert time.monotonic() - began < 30


def test_the_time_between_questions_adds_up():
    body = "import time\nfor _ in range(50):\n    time.sleep(0.2); ask(Request())\nreturn Proposal(Change())"
    assert refusal(strategy(body), proposing, seconds=1.5) == "propose took more than 1.5 s"


@pytest.mark.parametrize(
    ("accept", "words"), [("return 1", "accept must return a bool, got int"), ("return None", "got NoneType")]
)
def test_an_acceptance_is_a_bool(accept, words):
    with hosted(strategy(accept=accept)) as host, pytest.raises(StrategyError, match=words):
        host.accept(history(1), experiment(1))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(:", "SyntaxError"),
        ("import torch", "ModuleNotFoundError: No module named 'torch'"),
        ("x = 1", "KeyError: 'Strategy'"),
        ("class Strategy: pass", "TypeError"),
        ("import os; os._exit(0)", "start ended the strategy's process"),
        ("x = '" + "\\ud800" + "'\nraise ValueError(x)", "start"),
        (strategy(init="while True: pass"), "start took more than 2 s"),
    ],
    ids=["syntax", "torch", "no strategy", "wrong strategy", "exit", "half a letter", "hangs"],
)
def test_a_module_that_does_not_load_is_said_so(source, words):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StrategyError) as caught:
        Host(source, TASK, 0, tier(), 2.0)
    assert words in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_answers_a_question_may_raise_and_is_not_taken_for_the_strategys_fault():
    def ask(request):
        raise ConnectionError("the model is gone")

    with hosted(strategy("try: ask(Request())\nexcept BaseException: pass\nreturn Proposal(Change())")) as host:
        with pytest.raises(ConnectionError, match="the model is gone"):
            host.propose(history(1), ask)
        assert host.propose(history(1), silent).answer == Proposal(Change())


def test_only_a_proposal_may_ask():
    source = strategy("self.ask = ask\nreturn Proposal(Change())", accept="self.ask(Request())\nreturn True")
    with hosted(source) as host:
        host.propose(history(1), silent)
        with pytest.raises(StrategyError, match="accept may not ask the language model"):
            host.accept(history(1), experiment(1))


def test_what_it_prints_goes_nowhere_and_holds_nothing_up():
    with hosted(
        strategy("print('x' * 10**7)\nimport sys; sys.stderr.write('y' * 10**7)\nreturn Proposal(Change())")
    ) as host:
        assert host.propose(history(1), silent).answer == Proposal(Change())


# What it may not reach.


def test_it_reaches_no_package_no_network_no_file_no_key_and_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (tmp_path / "file").write_text("x")
    probes = [
        "import numpy", "import torch", "import inner.trial", "import traces", "import outer",
        f"import sys; sys.path += {sys.path!r}; import numpy",
        "import socket; socket.create_connection(('1.1.1.1', 53), 1)",
        f"open({str(tmp_path / 'file')!r})", f"open({__file__!r})", "open('/etc/passwd')",
        "import os; os.fork()", "import subprocess; subprocess.run(['/bin/true'])",
        "import os; assert 'secret' in str(dict(os.environ))",
        "import inner, os; assert set(os.listdir(os.path.dirname(inner.history.__file__))) - {'__init__.py', 'guest.py', 'history.py'}",  # noqa: E501
    ]  # fmt: skip
    body = f"""
found = []
for line in {probes!r}:
    try:
        exec(line)
        found.append(None)
    except Exception as error:
        found.append(type(error).__name__)
"""
    with hosted(strategy(body + say("found"))) as host:
        found = dict(zip(probes, told(host), strict=True))
    assert None not in found.values(), found


def test_without_bubblewrap_packages_are_not_on_its_path_either():
    body = """
found = []
for name in ("numpy", "torch", "duckdb"):
    try:
        __import__(name)
        found.append(name)
    except ImportError:
        pass
"""
    with hosted(strategy(body + say("found")), where="none") as host:
        assert told(host) == []


def test_closing_leaves_nothing_behind():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with hosted(strategy("raise ValueError")) as host:
            for _ in range(2):
                with pytest.raises(StrategyError):
                    host.propose(history(1), silent)
        host.close()
        assert host._confined.process.returncode is not None
    assert len(os.listdir("/proc/self/fd")) <= before

"""The outer loop as a LangGraph graph: digest, research, check, trial, compare, and again.

The graph knows nothing of what it improves. It is written over a `Subject`: level 2 is this graph over search
strategies (`outer.search`), level 3 is this graph over the researcher that writes them. The state holds counters only;
a subject records each step before it returns, and a step that finds its work recorded passes on.
"""

from __future__ import annotations

from typing import Any, Protocol, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph

from inner.checkpoint import drive

ATTEMPTS = 3
"""How often a researcher may mend a candidate that fails its check."""


class Subject(Protocol):
    """What is improved.

    Every method is idempotent for the same numbers: `index` of the turn, from 1, and `attempt` in it, from 0.
    """

    def digest(self, index: int) -> None:
        """Reads the record, and diagnoses where the search is stuck."""

    def research(self, index: int, attempt: int) -> None:
        """Writes a candidate, or mends the last one by what its check said."""

    def check(self, index: int, attempt: int) -> bool:
        """Whether the candidate keeps its contract and may run."""

    def trial(self, index: int) -> None:
        """Runs incumbent and candidate in pairs from one frozen state."""

    def compare(self, index: int) -> None:
        """Decides, and adopts the candidate or stays with the incumbent."""

    def refuse(self, index: int) -> None:
        """Records that no candidate passed its check."""


class _State(TypedDict):
    index: int
    attempt: int


def run_outer(subject: Subject, thread: str, iterations: int, checkpoints: BaseCheckpointSaver[Any]) -> None:
    """Makes `iterations` meta-iterations, or goes on with them.

    Args:
        subject: what is improved.
        thread: names the checkpoints.
        iterations: how many turns; 0 does nothing.
        checkpoints: where the graph's state is kept.
    """

    def digest(state: _State) -> _State:
        subject.digest(state["index"])
        return state

    def research(state: _State) -> _State:
        subject.research(state["index"], state["attempt"])
        return state

    def check(state: _State) -> _State:
        passed = subject.check(state["index"], state["attempt"])
        return {"index": state["index"], "attempt": 0 if passed else state["attempt"] + 1}

    def after_check(state: _State) -> str:
        return "trial" if state["attempt"] == 0 else "research" if state["attempt"] < ATTEMPTS else "refuse"

    def trial(state: _State) -> _State:
        subject.trial(state["index"])
        return state

    def compare(state: _State) -> _State:
        subject.compare(state["index"])
        return {"index": state["index"] + 1, "attempt": 0}

    def refuse(state: _State) -> _State:
        subject.refuse(state["index"])
        return {"index": state["index"] + 1, "attempt": 0}

    def after_turn(state: _State) -> str:
        return "digest" if state["index"] <= iterations else END

    graph = StateGraph(_State)
    for node in (digest, research, check, trial, compare, refuse):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "digest")
    graph.add_edge("digest", "research")
    graph.add_edge("research", "check")
    graph.add_conditional_edges("check", after_check, ["trial", "research", "refuse"])
    graph.add_edge("trial", "compare")
    graph.add_conditional_edges("compare", after_turn, ["digest", END])
    graph.add_conditional_edges("refuse", after_turn, ["digest", END])
    if iterations > 0:
        drive(graph, thread, {"index": 1, "attempt": 0}, 12 * iterations + 10, checkpoints)

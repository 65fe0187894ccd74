"""Checkpoints that cannot be written are the machine's fault, told in a line."""

import sqlite3
from typing import TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from inner.checkpoint import drive
from traces.errors import MachineError


class State(TypedDict):
    count: int


def counting(seen):
    def node(state):
        seen.append(state["count"])
        return {"count": state["count"] + 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["count"] < 3 else END, ["node", END])
    return graph


def test_a_graph_that_has_ended_is_left_alone(tmp_path):
    seen = []
    with SqliteSaver.from_conn_string(str(tmp_path / "file")) as checkpoints:
        for _ in range(2):
            drive(counting(seen), "thread", {"count": 0}, 10, checkpoints)
    assert seen == [0, 1, 2]


def test_a_full_disk_is_one_line(tmp_path):
    connection = sqlite3.connect(tmp_path / "file", check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MachineError, match=r"full.*bilevel resume"):
        drive(counting([]), "thread" * 2000, {"count": 0}, 10, saver)

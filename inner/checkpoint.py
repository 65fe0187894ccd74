"""Drives a LangGraph graph from its beginning, or from where a kill left it."""

from __future__ import annotations

import sqlite3
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph

from traces.errors import MachineError


def drive(
    graph: StateGraph[Any], thread: str, first: dict[str, Any], steps: int, checkpoints: BaseCheckpointSaver[Any]
) -> None:
    """Runs a graph to its end; one that has ended is left alone.

    Args:
        graph: whose nodes may be run twice for the same state: the one that a kill falls into is.
        thread: names its checkpoints.
        first: the state to begin with, if it has not begun.
        steps: how many it takes at most.
        checkpoints: where the state is kept, before each next step is taken.

    Raises:
        MachineError: the state cannot be written. What a node raises goes through.
    """
    compiled = graph.compile(checkpointer=checkpoints)
    config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": steps}
    begun = compiled.get_state(config).created_at is not None
    # A snapshot's `next` is no sign of the end: it is empty too where a kill fell between a step and its checkpoint.
    try:
        compiled.invoke(None if begun else first, config, durability="sync")
    except sqlite3.OperationalError as error:
        raise MachineError(f"the checkpoints cannot be written: {error}; make room, then `bilevel resume`") from None

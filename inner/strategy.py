"""The seed strategy: greedy, as Karpathy's program.md has it. The outer loop replaces this module whole.

The loop runs the baseline first. From then on: ask the model for one change to the best surface so far, run it, keep it
if the metric is better, else go back.
"""

from __future__ import annotations

import random

from inner.history import Ask, Change, Experiment, History, Proposal, Request, TaskView


class Strategy:
    """Decides what to try next and what to keep."""

    def __init__(self, task: TaskView, rng: random.Random) -> None:
        self.task = task
        self.rng = rng

    def propose(self, history: History, ask: Ask) -> Proposal:
        """The model's first idea, given all of the history."""
        ideas = ask(Request())
        return ideas[0] if ideas else Proposal(Change(), "the model had no idea")

    def accept(self, history: History, candidate: Experiment) -> bool:
        """Keep what is better than the best so far."""
        return history.gain(candidate.score, history.best.score) > 0

"""What several mechanisms need: the composer copies a function from here into every strategy that uses it."""

from __future__ import annotations

import math
import random

from inner.history import (
    Avoid,
    Change,
    Constant,
    Experiment,
    History,
    Move,
    Proposal,
    Request,
    TaskView,
    Value,
    moves_between,
)


def size_of(constant: Constant, before: Value | None, after: Value) -> float:
    """How many steps lie between two values, as `Constant.step` counts them; NaN where there is no direction."""
    if constant.kind == "choice" or not isinstance(before, int | float) or not isinstance(after, int | float):
        return math.nan
    assert constant.low is not None and constant.high is not None
    if constant.scale == "linear":
        return 4 * abs(after - before) / (constant.high - constant.low)
    floor = constant.low if constant.low > 0 else constant.high / 1000
    return abs(math.log2(max(after, floor) / max(before, floor)))


def forbids(avoid: tuple[Avoid, ...], move: Move) -> bool:
    """Whether any entry of `avoid` forbids the move: by its constant, its direction or the value it goes to."""
    return any(
        entry.constant == move.constant
        and entry.direction in (None, move.direction)
        and entry.value in (None, move.after)
        for entry in avoid
    )


def steps_from(task: TaskView, base: Experiment) -> list[Move]:
    """Every change of one constant of `base` by one step, or to another choice."""
    steps: list[Move] = []
    for name, constant in task.constants.items():
        value = base.constants.get(name)
        if constant.kind == "choice":
            values = constant.choices
        else:
            values = () if value is None else (constant.step(value, "up"), constant.step(value, "down"))
        steps += [move for after in values for move in moves_between({name: constant}, base.constants, {name: after})]
    return steps


def untried_step(task: TaskView, rng: random.Random, history: History, base: Experiment, request: Request) -> Proposal:
    """A step of one constant from `base`, at random, for when the model has no idea that may be run.

    The first of these that leaves a choice: what the request allows and no experiment has run; what no experiment has
    run; any step. Measures `base` again if its constants cannot be moved at all.
    """
    steps = steps_from(task, base)
    untried = [step for step in steps if step.after not in history.values_of(step.constant)]
    asked = [step for step in untried if not request.constants or step.constant in request.constants]
    pool = [step for step in asked if not forbids(request.avoid, step)] or untried or steps
    if not pool:
        return Proposal(Change(), "no constant can be moved: the same surface again")
    step = rng.choice(pool)
    return Proposal(
        Change({step.constant: step.after}), f"the model has no idea left: {step.constant} {step.direction}"
    )

"""The built-in stand-in for a language model: it needs no key and no network.

It behaves like the model in the published logs, because a search that stagnates in the way theirs did is what the
levels above are there to mend. Its results are a stand-in's, and are called so wherever they are shown.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inner.history import (
    Avoid,
    Change,
    Direction,
    Experiment,
    History,
    Proposal,
    Request,
    TaskView,
    Value,
    direction_of,
)
from inner.model import Answer


@dataclass(frozen=True, slots=True)
class Habit:
    """How the stand-in treats one constant.

    Attributes:
        share: of all proposals.
        repeat: chance that the proposal after one of this constant is of this constant again.
        up: chance that the first step of a constant is upwards.
        step: size of a step, as `Constant.step` takes it: octaves of a log scale, quarters of a linear range.
    """

    share: float
    repeat: float
    up: float
    step: float


@dataclass(frozen=True)
class Habits:
    """The habits of the stand-in: the figures of the published logs, and our assumptions where the logs are silent.

    From the twelve runs of "Bilevel Autoresearch" (arXiv 2603.23420, run 2): `share`, of about 360 proposals, and
    `first`, of 24 beginnings with an empty history. From its groups A and D, with 180 proposals and 12 beginnings:
    `repeat`, from the second proposal on (n = 73 for WEIGHT_DECAY, 42 WINDOW_PATTERN, 31 EMBEDDING_LR, 8
    TOTAL_BATCH_SIZE); `up`, where a direction is known (n = 8 for WEIGHT_DECAY, 6 EMBEDDING_LR, 11 TOTAL_BATCH_SIZE);
    `second_chance` (n = 12); `turn` (3 of n = 59).

    Assumed: every `step`, since the logs give no values; where there are fewer than 6 cases, the `repeat` of all
    constants together (0.74) and an open `up` (0.5).

    Attributes:
        table: by name of the constant.
        other: any other constant; its share is that of all of them together.
        first: weights of the first proposal, by constant and direction, when no proposal is in sight.
        second: the constant of the next one.
        second_chance: how often it is that one.
        turn: chance that a step goes against the first one of the same constant in sight, whatever became of that.
        memory: how many of the experiments it is shown the stand-in remembers; all if `None`.
    """

    table: Mapping[str, Habit] = field(
        default_factory=lambda: {
            #                           share  repeat  up   step
            "WEIGHT_DECAY": Habit(0.44, 0.77, 0.00, 0.5),
            "TOTAL_BATCH_SIZE": Habit(0.16, 0.50, 0.82, 1.0),
            "EMBEDDING_LR": Habit(0.15, 0.81, 0.17, 0.5),
            "WINDOW_PATTERN": Habit(0.15, 0.69, 0.50, 1.0),
            "MATRIX_LR": Habit(0.03, 0.74, 0.50, 0.5),
            "HEAD_DIM": Habit(0.03, 0.74, 0.50, 1.0),
            "SCALAR_LR": Habit(0.03, 0.74, 0.50, 0.5),
            "WARMUP_RATIO": Habit(0.02, 0.74, 0.50, 0.5),
            "UNEMBEDDING_LR": Habit(0.02, 0.74, 0.50, 0.5),
        }
    )
    other: Habit = Habit(0.01, 0.74, 0.50, 0.5)
    first: Mapping[tuple[str, Direction], float] = field(
        default_factory=lambda: {
            ("TOTAL_BATCH_SIZE", "up"): 20,
            ("TOTAL_BATCH_SIZE", "down"): 2,
            ("WEIGHT_DECAY", "down"): 1,
            ("WINDOW_PATTERN", "set"): 1,
        }
    )
    second: str = "WEIGHT_DECAY"
    second_chance: float = 7 / 12
    turn: float = 0.05
    memory: int | None = None

    def of(self, constant: str) -> Habit:
        """The habit for a constant."""
        return self.table.get(constant, self.other)


@dataclass(frozen=True)
class Prior:
    """The built-in stand-in for a language model.

    It looks at which constants were proposed, in which order and to which values, never at scores or decisions: so the
    same seed gives the same proposals although measured scores are noisy. (In the logs the same constant comes again
    after 75 % of 138 discards, but after 38 % of 29 keeps. That difference is left out for the sake of this.) A step
    goes on from the value proposed last, kept or not. Only where a constant was not proposed in what the model is shown
    does it start from the parent, and so from what has been kept.

    What `request.avoid` names is never proposed. Guidance is not understood. When the ways that a habit would take are
    used up, it tries, in this order: another constant; back the other way, and finer steps; values it has tried before;
    and in the end it proposes less than it was asked for, or nothing.
    """

    habits: Habits = field(default_factory=Habits)
    name: str = "prior"
    stand_in: bool = True
    free: bool = True

    def ask(self, request: Request, history: History, task: TaskView, rng: random.Random) -> Answer:
        """See `Model.ask`. `failed` if there is no experiment to change."""
        started = time.perf_counter()
        parent = _parent(request, history)
        if parent is None:
            return Answer(
                (), "There is nothing to change yet.", None, None, 0.0, time.perf_counter() - started, "failed"
            )
        trail = _Trail(request, history, task, parent, self.habits)
        proposals: list[Proposal] = []
        for _ in range(request.candidates):
            move = trail.next(rng)
            if move is None:
                break
            name, value, words = move
            proposals.append(Proposal(Change({name: value}), words, request.parent))
        text = "\n".join(p.hypothesis for p in proposals) or "I have nothing left to propose."
        return Answer(tuple(proposals), text, None, None, 0.0, time.perf_counter() - started)


class _Trail:
    """What the stand-in has in sight: the constants it may change, and the values that were proposed for them."""

    def __init__(self, request: Request, history: History, task: TaskView, parent: Experiment, habits: Habits) -> None:
        self.habits = habits
        self.avoid: Sequence[Avoid] = request.avoid
        self.at = parent.constants
        wanted = request.constants or tuple(task.constants)
        self.space = {n: c for n, c in task.constants.items() if n in wanted and n in parent.constants}
        for limit in (request.show, habits.memory):
            history = history if limit is None else history.last(limit)
        self.order = [move.constant for e in history for move in e.moves[:1]]
        # By constant: the value it started from, then every value proposed.
        self.values: dict[str, list[Value]] = {name: [] for name in self.space}
        for move in (move for e in history for move in e.moves if move.constant in self.space):
            if not self.values[move.constant]:
                self.values[move.constant].append(self.at[move.constant] if move.before is None else move.before)
            self.values[move.constant].append(move.after)
        self.taken: list[tuple[str, Value]] = []  # by the candidates before, of this same answer

    def next(self, rng: random.Random) -> tuple[str, Value, str] | None:
        for stage in (self._onwards, self._back, self._again):
            names = list(self.space)
            while names:
                name, way = self._constant(names, rng)
                way = way or self._way(name, rng)
                value = stage(name, way, rng)
                if value is not None:
                    self.taken.append((name, value))
                    return name, value, self._words(name, value)
                names.remove(name)
        return None

    def _constant(self, names: Sequence[str], rng: random.Random) -> tuple[str, Direction | None]:
        if not self.order:
            known = {key: weight for key, weight in self.habits.first.items() if key[0] in names}
            if known:
                return rng.choices(list(known), list(known.values()))[0]
        else:
            last, second, drawn = self.order[-1], self.habits.second, rng.random()
            spared = {last}
            if len(self.order) > 1:
                if last in names and drawn < self.habits.of(last).repeat:
                    return last, None
            elif second != last:
                if second in names and drawn < self.habits.second_chance:
                    return second, None
                spared.add(second)
            names = [name for name in names if name not in spared] or names
        return rng.choices(names, [self._weight(name) for name in names])[0], None

    def _weight(self, name: str) -> float:
        # A constant that is repeated more often has to be taken up less often to have the same share.
        habit = self.habits.of(name)
        others = 1 if name in self.habits.table else sum(n not in self.habits.table for n in self.space)
        return habit.share * (1 - habit.repeat) / others

    def _way(self, name: str, rng: random.Random) -> Direction:
        values = self.values[name]
        if self.space[name].kind == "choice":
            return "set"
        if len(values) < 2:
            return "up" if rng.random() < self.habits.of(name).up else "down"
        first = direction_of(self.space[name], values[0], values[1])
        turned = rng.random() < self.habits.turn
        return "up" if (first == "up") != turned else "down"

    def _onwards(self, name: str, way: Direction, rng: random.Random) -> Value | None:
        step = self.habits.of(name).step
        value = self._walk(name, way, step, rng)
        if value is None and len(self.values[name]) < 2 and way != "set":  # a range is entered from either end
            value = self._walk(name, _opposite(way), step, rng)
        return value

    def _back(self, name: str, way: Direction, rng: random.Random) -> Value | None:
        for finer in (1.0, 0.5, 0.25):
            for direction in (_opposite(way), way):
                value = self._walk(name, direction, self.habits.of(name).step * finer, rng)
                if value is not None:
                    return value
        return None

    def _again(self, name: str, way: Direction, rng: random.Random) -> Value | None:
        constant = self.space[name]
        known = constant.choices if constant.kind == "choice" else tuple(dict.fromkeys(self.values[name]))
        fit = [value for value in known if self._wanted(name, value)]
        return rng.choice(fit) if fit else None

    def _walk(self, name: str, way: Direction, size: float, rng: random.Random) -> Value | None:
        """The next value in a direction that has not been tried; any choice that has not, for a choice."""
        constant, tried = self.space[name], self.values[name]
        if constant.kind == "choice":
            fit = [v for v in constant.choices if v not in tried and self._wanted(name, v)]
            return rng.choice(fit) if fit else None
        value = tried[-1] if tried else self.at[name]
        while (moved := constant.step(value, way, size)) != value:
            value = moved
            if not any(_near(value, other) for other in tried) and self._wanted(name, value):
                return value
        return None

    def _wanted(self, name: str, value: Value) -> bool:
        if _near(value, self.at[name]) or not self.space[name].allows(value):
            return False
        if any(name == n and _near(value, v) for n, v in self.taken):
            return False
        way = direction_of(self.space[name], self.at[name], value)
        return not any(
            avoid.constant == name
            and avoid.direction in (None, way)
            and (avoid.value is None or _near(value, avoid.value))
            for avoid in self.avoid
        )

    def _words(self, name: str, value: Value) -> str:
        values = self.values[name]
        way = direction_of(self.space[name], values[-1] if values else self.at[name], value)
        verb = {"up": "Raise", "down": "Lower", "set": "Set"}[way]
        more = ""
        if len(values) > 1 and way != "set":
            more = " further" if way == direction_of(self.space[name], values[-2], values[-1]) else " again"
        reason = _REASONS.get((name, way), "this may have room for improvement")
        return f"{verb} {name}{more} to {value!r}: {reason}."


# What a model would say for it. Nothing reads these but people.
_REASONS: Mapping[tuple[str, Direction], str] = {
    ("TOTAL_BATCH_SIZE", "up"): "a larger batch should make the gradient less noisy",
    ("TOTAL_BATCH_SIZE", "down"): "a smaller batch gives more optimizer steps in the budget",
    ("WEIGHT_DECAY", "down"): "in so short a run, regularization probably holds the fit back",
    ("WEIGHT_DECAY", "up"): "more regularization may help the validation text",
    ("EMBEDDING_LR", "down"): "embeddings may be learning too fast to settle",
    ("EMBEDDING_LR", "up"): "embeddings see each token rarely and could learn faster",
    ("WINDOW_PATTERN", "set"): "another mix of short and long attention may spend the compute better",
}


def _parent(request: Request, history: History) -> Experiment | None:
    if request.parent is not None:
        return next((e for e in history if e.index == request.parent), None)
    return history.best if history.kept else None


def _opposite(way: Direction) -> Direction:
    return "down" if way == "up" else "up" if way == "down" else "set"


def _near(one: Value, other: Value) -> bool:
    """Whether two values are the same for a search: equal, or numbers within one percent."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=0.01)
    return one == other

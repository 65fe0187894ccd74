"""What has been tried, as a strategy sees it.

Standard library only: this file travels into the strategy's sandbox, and a strategy imports its words from here.
Everything is frozen; a strategy that wants to remember something keeps it in itself, in `observe`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

Value = int | float | str | tuple[float, ...]
Direction = Literal["up", "down", "set"]
Status = Literal["baseline", "keep", "discard", "crash", "timeout", "invalid", "pruned", "refused"]

FAILED: frozenset[str] = frozenset({"crash", "timeout", "invalid", "pruned", "refused"})


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the surface that may be searched.

    Attributes:
        name: as it is written in the surface.
        kind: `int`, `float`, or `choice` (any of `choices`, in no order).
        low: smallest value, `None` for a choice.
        high: largest value, `None` for a choice.
        scale: `log` or `linear`: how a step is taken. A log scale with `low` 0 steps in log above `high` / 1000.
        choices: the values of a choice.
        power_of_two: an `int` that is rounded to a power of two.
    """

    name: str
    kind: Literal["int", "float", "choice"]
    low: float | None = None
    high: float | None = None
    scale: Literal["log", "linear"] = "linear"
    choices: tuple[Value, ...] = ()
    power_of_two: bool = False

    def clip(self, value: float) -> Value:
        """The nearest value that this constant may take: inside the bounds, a float to four digits if they are enough.

        Raises:
            ValueError: for a choice, and for NaN.
        """
        if self.kind == "choice" or math.isnan(value):
            raise ValueError(f"{self.name}: {value} has no nearest value of kind {self.kind}")
        assert self.low is not None and self.high is not None
        value = min(max(value, self.low), self.high)
        if self.kind == "float":
            short = float(f"{value:.4g}")
            if abs(short - value) > (self.high - self.low) / 100:
                short = value
            # Rounding may cross a bound that has more digits.
            return float(min(max(short, self.low), self.high))
        low, high = math.ceil(self.low), math.floor(self.high)
        if self.power_of_two and value > 0.5:
            power = round(math.log2(value))
            fitting = [2**p for p in (power, power - 1, power + 1) if p >= 0 and low <= 2**p <= high]
            return fitting[0] if fitting else min(max(round(value), low), high)
        return min(max(round(value), low), high)

    def step(self, value: Value, direction: Direction, size: float = 1.0) -> Value:
        """A value one step up or down: a factor of 2 to the power `size` (log), `size` quarters of the range (linear).

        A whole number moves by at least 1, a power of two to the next one at least. The result equals `value` at the
        end of the range.

        Raises:
            ValueError: for a choice, which has no direction.
        """
        if self.kind == "choice" or not isinstance(value, int | float):
            raise ValueError(f"{self.name} is a choice: it has no direction")
        assert self.low is not None and self.high is not None
        if direction == "set":
            return self.clip(value)
        up = direction == "up"
        if self.scale == "linear":
            moved = value + (1 if up else -1) * size * (self.high - self.low) / 4
        else:
            floor = self.low if self.low > 0 else self.high / 1000
            moved = max(float(value), floor) * 2.0 ** (size if up else -size)
            moved = 0.0 if self.low == 0 and moved < floor else moved
        if self.kind == "int":
            next_up, next_down = (value * 2, value / 2) if self.power_of_two and value > 0 else (value + 1, value - 1)
            moved = max(moved, next_up) if up else min(moved, next_down)
        return self.clip(moved)

    def allows(self, value: Value) -> bool:
        """Whether `value` is of the right kind and inside the bounds."""
        if self.kind == "choice":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind == "int" and not isinstance(value, int):
            return False
        assert self.low is not None and self.high is not None
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class TaskView:
    """What a strategy may know of its task: the space, the metric's name and direction, the budget of the run."""

    name: str
    metric: str
    direction: Literal["minimize", "maximize"]
    budget_seconds: float
    experiments: int
    constants: Mapping[str, Constant]


@dataclass(frozen=True, slots=True)
class Block:
    """A search/replace edit: `search` must occur exactly once in the surface."""

    search: str
    replace: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change to the surface: some constants, or some blocks, or a whole new text. Empty: the surface as it is."""

    constants: Mapping[str, Value] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to try next: a change to the surface of `parent` (the best experiment so far if `None`), and why."""

    change: Change
    hypothesis: str = ""
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Avoid:
    """A change that a model is asked not to propose: of a constant, if given in one direction or to one value only."""

    constant: str
    direction: Direction | None = None
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A question to the language model.

    Attributes:
        constants: only these may be changed; all of the space if empty.
        avoid: changes not wanted.
        show: how many of the last experiments the model sees; all if `None`, none if 0.
        guidance: free advice, put before the model as it is.
        candidates: how many proposals are wanted.
        parent: the experiment whose surface is to be changed; the best so far if `None`.
    """

    constants: tuple[str, ...] = ()
    avoid: tuple[Avoid, ...] = ()
    show: int | None = None
    guidance: str = ""
    candidates: int = 1
    parent: int | None = None


class Ask(Protocol):
    """The only way from a strategy to a language model; metered by the host."""

    def __call__(self, request: Request) -> tuple[Proposal, ...]:
        """The model's proposals, at most `request.candidates` of them, possibly none."""


@dataclass(frozen=True, slots=True)
class Move:
    """What an experiment did to one constant, against its parent."""

    constant: str
    direction: Direction
    before: Value | None
    after: Value


@dataclass(frozen=True, slots=True)
class Experiment:
    """One edit, one time-boxed run, one score, one decision.

    Attributes:
        index: place in the run; 0 is the baseline.
        parent: index of the experiment whose surface was changed; `None` for the baseline.
        change: what was changed.
        hypothesis: why, in the proposer's words.
        constants: the constants of the surface after the change.
        moves: the constants that differ from the parent's.
        status: the decision; while a strategy is asked to accept, `discard`.
        score: the metric, `None` unless the experiment was scored.
        seconds: seconds of training on the budget's clock.
    """

    index: int
    parent: int | None
    change: Change
    hypothesis: str
    constants: Mapping[str, Value]
    moves: tuple[Move, ...]
    status: Status
    score: float | None
    seconds: float

    @property
    def kept(self) -> bool:
        """Whether the experiment may be branched from as an accepted one."""
        return self.status in ("baseline", "keep")

    @property
    def failed(self) -> bool:
        """Whether there is no score."""
        return self.status in FAILED


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of a training curve, reported by the experiment itself."""

    step: int
    progress: float
    loss: float


@dataclass(frozen=True, slots=True)
class History:
    """The experiments of a run so far, oldest first; read-only.

    Attributes:
        experiments: all of them, the baseline first.
        noise: the noise floor (standard deviation of the metric of one surface over seeds), `None` if not measured.
        direction: of the metric.
    """

    experiments: tuple[Experiment, ...] = ()
    noise: float | None = None
    direction: Literal["minimize", "maximize"] = "minimize"

    def __len__(self) -> int:
        return len(self.experiments)

    def __iter__(self) -> Iterator[Experiment]:
        return iter(self.experiments)

    def __getitem__(self, index: int) -> Experiment:
        return self.experiments[index]

    def gain(self, score: float | None, over: float | None) -> float:
        """How much better `score` is than `over`: positive is better, NaN if either is missing."""
        if score is None or over is None:
            return math.nan
        return over - score if self.direction == "minimize" else score - over

    @property
    def scored(self) -> tuple[Experiment, ...]:
        """The experiments that have a score."""
        return tuple(e for e in self.experiments if e.score is not None)

    @property
    def kept(self) -> tuple[Experiment, ...]:
        """The baseline and the keeps, oldest first."""
        return tuple(e for e in self.experiments if e.kept and e.score is not None)

    @property
    def baseline(self) -> Experiment:
        """The unchanged surface. Raises `IndexError` before it has run."""
        return self.experiments[0]

    @property
    def current(self) -> Experiment:
        """The last keep, or the baseline: where an annealed search stands."""
        return self.kept[-1]

    @property
    def best(self) -> Experiment:
        """The best of the kept experiments, the earliest among equals. Raises `ValueError` if none was scored."""
        sign = 1.0 if self.direction == "minimize" else -1.0
        return min(self.kept, key=lambda e: (sign * (e.score if e.score is not None else math.inf), e.index))

    def last(self, count: int) -> History:
        """The history as if only its last `count` experiments had been; indices stay."""
        return replace(self, experiments=self.experiments[-count:] if count > 0 else ())

    def moves_of(self, constant: str) -> tuple[Experiment, ...]:
        """The experiments that changed `constant`, oldest first."""
        return tuple(e for e in self.experiments if any(m.constant == constant for m in e.moves))

    def values_of(self, constant: str) -> tuple[Value, ...]:
        """The values of `constant` that have been run, each once, oldest first."""
        return tuple(dict.fromkeys(e.constants[constant] for e in self.experiments if constant in e.constants))


def direction_of(constant: Constant, before: Value | None, after: Value) -> Direction:
    """`up` or `down` for numbers, `set` for choices and where nothing was before."""
    if constant.kind == "choice" or not isinstance(before, int | float) or not isinstance(after, int | float):
        return "set"
    return "up" if after > before else "down" if after < before else "set"


def moves_between(
    space: Mapping[str, Constant], before: Mapping[str, Value], after: Mapping[str, Value]
) -> tuple[Move, ...]:
    """The constants of `space` that differ, in the order of the space."""
    return tuple(
        Move(name, direction_of(constant, before.get(name), after[name]), before.get(name), after[name])
        for name, constant in space.items()
        if name in after and after[name] != before.get(name)
    )


def to_json(record: Any) -> dict[str, Any]:
    """A record of this module as plain data; `None` and empty fields are kept."""
    return asdict(record)


def _value(value: Any) -> Value:
    return tuple(value) if isinstance(value, list | tuple) else value


def _values(values: Mapping[str, Any]) -> dict[str, Value]:
    return {str(name): _value(value) for name, value in values.items()}


def change_from(data: Mapping[str, Any]) -> Change:
    """A `Change` from plain data. Raises `TypeError`, `KeyError` or `ValueError` if it is not one."""
    blocks = tuple(Block(str(b["search"]), str(b["replace"])) for b in data.get("blocks") or ())
    text = data.get("text")
    return Change(_values(data.get("constants") or {}), blocks, None if text is None else str(text))


def proposal_from(data: Mapping[str, Any]) -> Proposal:
    """A `Proposal` from plain data. Raises as `change_from`."""
    parent = data.get("parent")
    parent = None if parent is None else int(parent)
    return Proposal(change_from(data["change"]), str(data.get("hypothesis") or ""), parent)


def request_from(data: Mapping[str, Any]) -> Request:
    """A `Request` from plain data. Raises as `change_from`."""
    avoid = tuple(Avoid(str(a["constant"]), a.get("direction"), _value(a.get("value"))) for a in data.get("avoid", ()))
    show, parent = data.get("show"), data.get("parent")
    return Request(
        constants=tuple(str(c) for c in data.get("constants") or ()),
        avoid=avoid,
        show=None if show is None else int(show),
        guidance=str(data.get("guidance") or ""),
        candidates=int(data.get("candidates", 1)),
        parent=None if parent is None else int(parent),
    )


def experiment_from(data: Mapping[str, Any]) -> Experiment:
    """An `Experiment` from plain data. Raises as `change_from`."""
    moves = tuple(Move(m["constant"], m["direction"], _value(m["before"]), _value(m["after"])) for m in data["moves"])
    change, constants = change_from(data["change"]), _values(data["constants"])
    return Experiment(**(dict(data) | {"change": change, "constants": constants, "moves": moves}))


def task_view_from(data: Mapping[str, Any]) -> TaskView:
    """A `TaskView` from plain data. Raises as `change_from`."""
    constants = {
        name: Constant(**(dict(c) | {"choices": tuple(_value(v) for v in c["choices"])}))
        for name, c in data["constants"].items()
    }
    return TaskView(**(dict(data) | {"constants": constants}))

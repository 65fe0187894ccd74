"""The task: surface, metric, budget, data, and the space of constants, read from a TOML file.

A task file says what is trained and how it is judged; it never holds a result. `load_task` gives a `Task`, or one line
that names the file, the key and the way out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from inner.history import Constant, TaskView, Value, to_json
from traces.errors import EditError, TaskError

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Metric(_Section):
    """The one number that decides.

    Attributes:
        source: `scorer`, computed by us outside the experiment's process; `stdout` and `json` are *self-reported*, by
            any program: see `inner/program.py`.
        pattern: a regular expression with one group (stdout), or a dotted path into the last line that is a JSON
            object (json); none for `scorer`.
    """

    name: str = "val_bpb"
    direction: Literal["minimize", "maximize"] = "minimize"
    source: Literal["scorer", "stdout", "json"] = "scorer"
    pattern: str | None = None

    @model_validator(mode="after")
    def _pattern_where_needed(self) -> Metric:
        if (self.pattern is None) != (self.source == "scorer"):
            raise ValueError(f'source = "{self.source}" {"needs a" if self.pattern is None else "takes no"} pattern')
        if self.source == "stdout" and self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groups
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"pattern {self.pattern!r} is no regular expression: {error}") from None
            if groups != 1:
                raise ValueError(f"pattern {self.pattern!r} must have exactly one group")
        return self


class Budget(_Section):
    """What one experiment may cost.

    Attributes:
        seconds: of training.
        clock: `wall`, or `cpu`: processor seconds of everything in the sandbox, for shared and noisy machines.
        grace_seconds: how far past the budget the last step may run before the experiment is a `timeout`.
        startup_seconds: wall limit for importing, building and compiling, outside the clock.
        scoring_seconds: wall limit for answering the scorer, outside the clock.
        memory_gib: limit on the worker's memory, outside the GPU.
        scratch_mib: size of the one folder that the worker may write to.
        threads: processor threads of the worker.
        device: `cpu` or `cuda`.
    """

    seconds: Positive
    clock: Literal["wall", "cpu"] = "wall"
    grace_seconds: Positive = 5.0
    startup_seconds: Positive = 300.0
    scoring_seconds: Positive = 120.0
    memory_gib: Positive = 8.0
    scratch_mib: Count = 256
    threads: Count = 1
    device: Literal["cpu", "cuda"] = "cpu"


class Data(_Section):
    """What is trained on: see `benchmarks/gpt/prepare.py`."""

    source: str = "stdlib"
    vocab_size: Annotated[int, Field(ge=257, le=65536)] = 8192
    context: Annotated[int, Field(ge=2)] = 2048


class Scoring(_Section):
    """How the metric is measured.

    Attributes:
        tokens: how many validation tokens are scored: the same ones every time.
        rows: how many rows of `data.context` tokens one block has.
        tolerance: largest difference of log-probabilities, in nats, that the causal and the stateless check let pass.
    """

    tokens: Count
    rows: Count
    tolerance: Positive = 0.05


class ConstantEntry(_Section):
    """One `[constants.NAME]` table."""

    kind: Literal["int", "float", "choice"]
    low: Finite | None = None
    high: Finite | None = None
    scale: Literal["log", "linear"] = "linear"
    choices: tuple[Any, ...] = ()
    power_of_two: bool = False

    @field_validator("choices", mode="before")
    @classmethod
    def _tuples(cls, value: Any) -> Any:
        return tuple(tuple(v) if isinstance(v, list) else v for v in value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _bounds_or_choices(self) -> ConstantEntry:
        if self.kind == "choice":
            if len(self.choices) < 2 or self.low is not None or self.high is not None:
                raise ValueError("a choice has at least two choices and no bounds")
            if not all(_is_value(choice) for choice in self.choices):
                raise ValueError("a choice is a number, a string or a list of numbers")
        elif self.low is None or self.high is None or not self.low < self.high or self.choices:
            raise ValueError("a number has low < high and no choices")
        elif self.low < 0 and self.scale == "log":
            raise ValueError(f"a log scale cannot start at {self.low}")
        elif self.kind == "int" and math.ceil(self.low) > math.floor(self.high):
            raise ValueError(f"no whole number lies between {self.low} and {self.high}")
        return self


def _is_value(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(part, int | float) and math.isfinite(part) for part in value)
    return isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value))


@dataclass(frozen=True)
class Task:
    """A task as its file says it, checked.

    Attributes:
        path: the file it was read from.
        surface: the text of the surface, the overrides applied: the baseline of every run.
        surface_name: file name of the surface.
        scoring: `None` only where `metric.source` is not `scorer`.
    """

    path: Path
    name: str
    surface: str
    surface_name: str
    metric: Metric
    budget: Budget
    data: Data
    scoring: Scoring | None
    constants: dict[str, Constant]

    def view(self, experiments: int) -> TaskView:
        """What a strategy sees."""
        return TaskView(
            self.name, self.metric.name, self.metric.direction, self.budget.seconds, experiments, self.constants
        )

    @property
    def hash(self) -> str:
        """SHA-256 of everything that decides what an experiment of this task means."""
        parts = {
            "surface": self.surface,
            **{key: getattr(self, key).model_dump() for key in ("metric", "budget", "data")},
            "scoring": None if self.scoring is None else self.scoring.model_dump(),
            "constants": {name: to_json(constant) for name, constant in self.constants.items()},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class _File(_Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    surface: Annotated[str, Field(pattern=r"\.py$")]
    metric: Metric = Metric()
    budget: Budget
    data: Data = Data()
    scoring: Scoring | None = None
    constants: dict[str, ConstantEntry]
    overrides: dict[str, Any] = {}

    @model_validator(mode="after")
    def _blocks(self) -> _File:
        if (self.scoring is None) == (self.metric.source == "scorer"):
            need = "needs a" if self.scoring is None else "takes no"
            raise ValueError(f'metric.source = "{self.metric.source}" {need} [scoring] table')
        if self.scoring is None:
            return self
        block = self.scoring.rows * self.data.context
        if self.scoring.tokens % block or self.scoring.tokens < 2 * self.data.context:
            # Two rows at least: the causal check replaces the end of one by text of another.
            more = " of at least two rows" if self.scoring.rows == 1 else ""
            raise ValueError(f"scoring.tokens must be a multiple{more} of scoring.rows * data.context = {block}")
        return self


def load_task(path: Path, **changes: Any) -> Task:
    """Reads a task file and its surface.

    Args:
        path: a `.toml` file.
        **changes: replaces keys of the budget, as `seconds=2.0`.

    Raises:
        TaskError: the file is missing, is not TOML, lacks a key or has one of a wrong type; the surface is missing, is
            not Python, or lacks a constant that the file names.
    """
    from inner.edit import apply_constants, read_constants

    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TaskError(f"no task file {path}: give --task one, such as benchmarks/gpt/mini.toml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"task file {path} cannot be read: {_why(error)}; give --task a TOML file") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskError(f"{path} is not TOML: {error}; mend it there") from None
    if isinstance(raw.get("budget"), dict):
        raw["budget"] |= {key: value for key, value in changes.items() if value is not None}
    try:
        file = _File.model_validate(raw)
    except ValidationError as error:
        raise TaskError(_first_error(error, path)) from None

    surface_path = path.parent / file.surface
    try:
        surface = surface_path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TaskError(f"surface {surface_path} cannot be read: {_why(error)}; it is named in {path}") from None
    constants = {name: Constant(name=name, **entry.model_dump()) for name, entry in file.constants.items()}
    found = read_constants(surface, surface_path.name)
    for name in [*constants, *file.overrides]:
        if name not in found:
            raise TaskError(f"unknown constant {name} in {path}: {surface_path} assigns no literal to that name")
    overrides: dict[str, Value] = {k: tuple(v) if isinstance(v, list) else v for k, v in file.overrides.items()}
    for name, value in (found | overrides).items():
        if name in constants and not constants[name].allows(value):
            raise TaskError(f"{name} = {value!r:.80} is outside its own space in {path}: widen [constants.{name}]")
    try:
        surface = apply_constants(surface, overrides, surface_path.name)
    except EditError as error:
        raise TaskError(f"{error} ([overrides] of {path})") from None
    return Task(
        path=path.resolve(),
        name=file.name,
        surface=surface,
        surface_name=surface_path.name,
        metric=file.metric,
        budget=file.budget,
        data=file.data,
        scoring=file.scoring,
        constants=constants,
    )


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror}"
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _first_error(error: ValidationError, path: Path) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    more = error.error_count() - 1
    rest = f" (and {more} more)" if more else ""
    if first["type"] == "missing":
        return f"{path} lacks the key {where}{rest}"
    if first["type"] == "extra_forbidden":
        return f"{path} has an unknown key {where}{rest}"
    got = "" if isinstance(first["input"], dict | BaseModel) else f", got {first['input']!r:.80}"
    return f"{where or 'the task'}: {message[:1].lower()}{message[1:]}{got} ({path}){rest}"

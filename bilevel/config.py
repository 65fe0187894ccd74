"""What a study is to do: every choice that `resume` needs, as it is stored with the study."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from traces.errors import UserError

Command = Literal["calibrate", "run", "evolve", "demo"]
Count = Annotated[int, Field(ge=1)]


class Choices(BaseModel):
    """The choices of one study.

    Attributes:
        command: which of the commands began it.
        task: path of the task file.
        seed: of everything random in the study.
        seconds: replaces the task's budget, if given.
        slots: experiments at a time; by default one to a core or GPU.
        model: the language model of level 1.
        strategy: path of a strategy module to begin with, instead of the seed strategy.
        calibration_seeds: how often the unchanged surface is measured for the noise floor.
        repeats: runs of level 1, side by side, with seeds of their own.
        experiments: experiments of each such run, the baseline counted in.
        meta_iterations: turns of the outer loop.
        pairs: pairs of runs, incumbent and candidate, in each turn.
        trial_experiments: experiments that each run of a pair adds to the frozen state.
        fresh_seeds: seeds on which the best of each run of a pair is measured again.
        confirmation_seeds: seeds on which baseline and best are measured at the end.
        confidence: of every interval.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Command
    task: str
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    seconds: Annotated[float, Field(gt=0)] | None = None
    slots: Count | None = None
    model: str = "prior"
    strategy: str | None = None
    calibration_seeds: Annotated[int, Field(ge=2)] = 5
    repeats: Count = 1
    experiments: Annotated[int, Field(ge=2)] = 20
    meta_iterations: Annotated[int, Field(ge=0)] = 0
    pairs: Annotated[int, Field(ge=2)] = 4
    trial_experiments: Count = 6
    fresh_seeds: Count = 1
    confirmation_seeds: Annotated[int, Field(ge=2)] = 3
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.9


def choose(**choices: Any) -> Choices:
    """The choices, checked. Raises `UserError` naming the first that does not hold."""
    try:
        return Choices(**{name: value for name, value in choices.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + "-".join(str(part) for part in first["loc"]).replace("_", "-")
        raise UserError(f"{option} {first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None

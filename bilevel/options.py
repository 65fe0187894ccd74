"""The options of the command line: each is declared once, here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bilevel.config import Choices

MINI = "benchmarks/gpt/mini.toml"
LAB = Path("lab")
USUAL = Choices.model_construct(command="run", task=MINI)
"""What is chosen where nothing is said."""


def _set_debug(context: typer.Context, value: bool) -> None:
    context.ensure_object(dict)["debug"] = value


Lab = Annotated[Path, typer.Option("--lab", envvar="BILEVEL_LAB", help="Folder of the laboratory.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Debug = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, is_eager=True, help="Show where an error came from.")
]
Task = Annotated[str, typer.Option("--task", help="Task file.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random in the study.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Of training, instead of the task's budget.")]
Slots = Annotated[
    int | None,
    typer.Option("--slots", help="Experiments at a time.", show_default="one to a core or GPU"),
]
Model = Annotated[
    str, typer.Option("--model", help="Who proposes changes: prior, a stand-in for a language model that needs no key.")
]
Strategy = Annotated[
    str | None, typer.Option("--strategy", help="Strategy module to begin with.", show_default="the seed strategy")
]
Experiments = Annotated[int, typer.Option("--experiments", help="Of each run at level 1, the baseline counted in.")]
Repeats = Annotated[int, typer.Option("--repeats", help="Runs of level 1, side by side, each with its own seed.")]
CalibrationSeeds = Annotated[
    int, typer.Option("--calibration-seeds", help="How often the unchanged surface is measured for the noise floor.")
]
ConfirmationSeeds = Annotated[
    int, typer.Option("--confirmation-seeds", help="Fresh seeds that baseline and best are measured on at the end.")
]
Confidence = Annotated[float, typer.Option("--confidence", help="Of every interval.")]
MetaIterations = Annotated[int, typer.Option("--meta-iterations", help="Turns of the outer loop.")]
Pairs = Annotated[int, typer.Option("--pairs", help="Pairs of runs, incumbent and candidate, in each turn.")]
TrialExperiments = Annotated[
    int, typer.Option("--trial-experiments", help="Experiments that each run of a pair adds to the frozen state.")
]
FreshSeeds = Annotated[
    int, typer.Option("--fresh-seeds", help="Seeds that the best of each run of a pair is measured again on.")
]
StudyName = Annotated[
    str | None, typer.Argument(metavar="[STUDY]", help="By default the last one.", show_default=False)
]
RunName = Annotated[str | None, typer.Option("--run", help="By default the last study's main one.", show_default=False)]

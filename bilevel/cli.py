"""The command line. Results go to standard output, progress and errors to standard error.

Exit status: 0; 1 for a failure; 2 for a user's mistake, or where `doctor` finds something that fails; 130 when stopped.
An error is one line. What a command needs is imported when it runs, so that `--help` and `status` answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevel import reading
from bilevel.config import Command, choose
from bilevel.options import (
    LAB,
    MINI,
    USUAL,
    CalibrationSeeds,
    Confidence,
    ConfirmationSeeds,
    Debug,
    Experiments,
    FreshSeeds,
    Json,
    Lab,
    MetaIterations,
    Model,
    Pairs,
    Repeats,
    Seconds,
    Seed,
    Slots,
    Strategy,
    Task,
    TrialExperiments,
)
from bilevel.text import one_line, to_json
from traces.errors import BilevelError, Stopped, UserError

app = typer.Typer(
    name="bilevel",
    help="A laboratory for autonomous research loops that improve themselves.",
    epilog="Begin with `bilevel demo`. `bilevel doctor` says what this machine can do.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Report = Callable[[str, dict[str, Any]], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and gives its exit status. Whatever goes wrong is one line, unless `--debug` is there."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    shared = {"debug": False}
    try:
        status = app(words or ["--help"], standalone_mode=False, obj=shared)
    except Exception as error:
        if shared["debug"]:
            raise
        line, status = _told(error)
        print(f"bilevel: {one_line(line)}", file=sys.stderr)
    return status if isinstance(status, int) else 0


def _told(error: Exception) -> tuple[str, int]:
    """An error in a line, with the exit status for it."""
    if isinstance(error, Stopped):
        return str(error), 130
    if isinstance(error, BilevelError):
        return str(error), 2 if isinstance(error, UserError) else 1
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bilevel"
        return f"{error.format_message().rstrip('.')}: see `{command} --help`", 2
    if isinstance(error, typer.Abort):
        return "stopped", 130
    return f"{type(error).__name__}: {error or 'no more is known'}: run again with --debug to see where", 1


@app.command()
def prepare(
    task: Task = MINI,
    source: Annotated[
        str | None,
        typer.Option(help="stdlib, site, dir:PATH, climbmix or climbmix:N.", show_default="what the task says"),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens of the vocabulary.", show_default="what the task says")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn text into tokens, once. A task is trained on them; a second call is instant."""
    from benchmarks.gpt.prepare import prepare as make
    from inner.corpus import Corpus
    from inner.task import load_task

    data = load_task(Path(find_task(task))).data
    with _progress() as report:
        folder = make(
            source or data.source,
            vocab_size or data.vocab_size,
            report=lambda line: report("note", {"text": line}),
        )
    manifest = Corpus.open(folder).manifest
    splits = [{"split": name} | entry for name, entry in manifest["splits"].items()]
    result = {"folder": str(folder), "source": manifest["source"], "vocab_size": manifest["vocab_size"]}
    if as_json:
        print(to_json(result | {"splits": splits}))
        return
    from bilevel import show

    shown = [{k: split[k] for k in ("split", "tokens", "documents", "bytes")} for split in splits]
    show.show(show.console_for(), show.table(shown))
    print(folder)


@app.command()
def calibrate(
    context: typer.Context,
    task: Task = MINI,
    seed: Seed = USUAL.seed,
    seconds: Seconds = None,
    slots: Slots = None,
    calibration_seeds: CalibrationSeeds = USUAL.calibration_seeds,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the noise floor. That is how much the metric of the unchanged surface scatters over seeds."""
    _study("calibrate", context)


@app.command()
def run(
    context: typer.Context,
    task: Task = MINI,
    experiments: Experiments = USUAL.experiments,
    repeats: Repeats = USUAL.repeats,
    model: Model = USUAL.model,
    strategy: Strategy = None,
    seed: Seed = USUAL.seed,
    seconds: Seconds = None,
    slots: Slots = None,
    calibration_seeds: CalibrationSeeds = USUAL.calibration_seeds,
    confirmation_seeds: ConfirmationSeeds = USUAL.confirmation_seeds,
    confidence: Confidence = USUAL.confidence,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Level 1: search under one strategy. Edit, train, measure, keep or revert, again and again."""
    _study("run", context)


@app.command()
def evolve(
    context: typer.Context,
    task: Task = MINI,
    meta_iterations: MetaIterations = 3,
    experiments: Experiments = USUAL.experiments,
    repeats: Repeats = USUAL.repeats,
    pairs: Pairs = USUAL.pairs,
    trial_experiments: TrialExperiments = USUAL.trial_experiments,
    fresh_seeds: FreshSeeds = USUAL.fresh_seeds,
    model: Model = USUAL.model,
    strategy: Strategy = None,
    seed: Seed = USUAL.seed,
    seconds: Seconds = None,
    slots: Slots = None,
    calibration_seeds: CalibrationSeeds = USUAL.calibration_seeds,
    confirmation_seeds: ConfirmationSeeds = USUAL.confirmation_seeds,
    confidence: Confidence = USUAL.confidence,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Levels 1 and 2: improve the strategy too. Find where it is stuck, write another, keep it only if it is better."""
    _study("evolve", context)


@app.command()
def demo(
    context: typer.Context,
    task: Task = MINI,
    meta_iterations: MetaIterations = 2,
    experiments: Experiments = 8,
    repeats: Repeats = 2,
    pairs: Pairs = 4,
    trial_experiments: TrialExperiments = 2,
    fresh_seeds: FreshSeeds = 1,
    seed: Seed = USUAL.seed,
    seconds: Seconds = None,
    slots: Slots = None,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """See all of it at work, in minutes. Noise floor, level 1, meta-iterations, confirmation, on real training."""
    _study("demo", context)


@app.command()
def resume(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="By default the last unfinished one.", show_default=False)
    ] = None,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Go on after Ctrl-C, a kill or a reboot. Nothing that is recorded is run again."""

    def go_on(report: Report) -> str:
        from bilevel import studies

        return studies.resume(lab, study, report)

    _watched(go_on, lab, as_json)


for command in (reading.status, reading.log, reading.diff, reading.sql, reading.export, reading.charts, reading.doctor):
    app.command()(command)


def find_task(task: str) -> str:
    """The path of a task file: as given, or, from anywhere, beside the benchmarks that came with bilevel."""
    ours = Path(str(resources.files("benchmarks"))).parent / task
    return str(ours) if not Path(task).exists() and ours.is_file() else task


def _study(command: Command, context: typer.Context) -> None:
    """Begins a study, shows it while it runs, and sums it up. Every option but the common ones is a choice."""
    options = dict(context.params)
    lab, as_json = options.pop("lab"), options.pop("as_json")
    del options["debug"]
    choices = choose(command=command, **options | {"task": find_task(options["task"])})

    def begin(report: Report) -> str:
        from bilevel import studies

        return studies.begin(lab, choices, report)

    _watched(begin, lab, as_json)


def _watched(work: Callable[[Report], str], lab: Path, as_json: bool) -> None:
    try:
        with _progress() as report:
            study = work(report)
    except (Stopped, KeyboardInterrupt):
        raise Stopped(f"stopped, and all that was recorded is safe: go on with `bilevel resume --lab {lab}`") from None
    reading.status(study, lab, as_json)
    if not as_json:
        print(_closing(study, lab))


def _closing(study: str, lab: Path) -> str:
    """Where everything is, and what to try next."""
    from traces.store import DATABASE

    where = "" if lab == LAB else f" --lab {lab}"
    tries = [f"bilevel log{where}", f"bilevel diff 1{where}", f"bilevel evolve{where}", "bilevel --help"]
    pictures = sorted(map(str, (lab / "charts").glob(f"{study}-*.png")))
    lines = [("record", str(lab / DATABASE)), *(("picture", path) for path in pictures), ("next", ", ".join(tries))]
    return "\n" + "\n".join(f"{word:<8} {text}" for word, text in lines)


@contextmanager
def _progress() -> Iterator[Report]:
    from bilevel import show
    from bilevel.progress import watching

    with watching(show.console_for(stderr=True)) as report:
        yield report

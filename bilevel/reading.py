"""The commands that read: what the record holds and what this machine can do. `cli` gives them to the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bilevel.options import LAB, Debug, Json, Lab, RunName, StudyName
from bilevel.text import one_line, to_json
from traces.errors import UserError

IN_QUERY = " in the query: "


def status(study: StudyName = None, lab: Lab = LAB, as_json: Json = False, debug: Debug = False) -> None:
    """Show studies, runs and gains. By default all studies in short and the last one in full."""
    from bilevel import show
    from traces import summary
    from traces.store import connect

    with connect(lab) as reader:
        listed = [] if study else summary.studies(reader)
        chosen = summary.study(reader, study) if study or listed else None
    writer = summary.writer(lab)
    if as_json:
        print(to_json(chosen if study else {"writer": writer, "studies": listed, "last": chosen}))
        return
    console = show.console_for()
    if len(listed) > 1:
        show.show(console, show.studies(listed))
        console.print()
    if chosen:
        show.show(console, show.study(chosen, writer))
    else:
        console.print(f"{lab} has no study yet: `bilevel run` or `bilevel demo` makes one")


def log(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="By default the last study's main one.", show_default=False)
    ] = None,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the experiments of a run."""
    from bilevel import show
    from traces import summary
    from traces.store import connect

    with connect(lab) as reader:
        run = run or summary.main_run(reader)
        rows = summary.experiments(reader, run)
    if as_json:
        print(to_json({"run": run, "experiments": rows}))
        return
    show.show(show.console_for(), show.log(run, rows))


def diff(
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the experiment in its run.")],
    run: RunName = None,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what an experiment changed. The diff is against the experiment that it branched from."""
    from bilevel import show
    from traces import summary
    from traces.store import connect

    with connect(lab) as reader:
        run = run or summary.main_run(reader)
        text = summary.experiment_diff(reader, run, number)
    if as_json:
        print(to_json({"run": run, "experiment": number, "diff": text}))
        return
    show.show(show.console_for(), show.diff(text))
    if not text:
        print(f"bilevel: experiment {number} of {run} has the surface as it was, unchanged", file=sys.stderr)


def sql(
    query: Annotated[str, typer.Argument(help='One statement, such as "FROM experiment".')],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows at most.")] = 100,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Ask the record anything. It is read only; `SHOW TABLES` and `DESCRIBE run` say what is there."""
    from bilevel import show
    from traces.store import connect

    with connect(lab) as reader:
        try:
            rows = reader.rows(bounded(query, limit + 1))
        except UserError as error:
            # Of the query as it was typed.
            raise UserError(f"{str(error).partition(IN_QUERY)[0]}{IN_QUERY}{one_line(query, 200)}") from None
    more = len(rows) > limit
    if as_json:
        print(to_json(rows[:limit]))
    else:
        console = show.console_for()
        show.show(console, show.table(rows[:limit], console.width))
    if more:
        print(f"bilevel: more than {limit} rows: --limit shows more of them", file=sys.stderr)


def export(
    folder: Annotated[
        Path | None, typer.Argument(help="Where to.", show_default="export in the laboratory", metavar="[FOLDER]")
    ] = None,
    lab: Lab = LAB,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write results.tsv and Parquet files. One results.tsv for each run, one Parquet file for each table."""
    from traces.export import write_parquet, write_results
    from traces.store import connect

    folder = folder or lab / "export"
    with connect(lab) as reader:
        results = write_results(reader, folder)
        tables = write_parquet(reader, folder)
    if as_json:
        print(to_json({"folder": str(folder), "results": list(map(str, results)), "tables": list(map(str, tables))}))
        return
    print(f"{len(results)} runs as RUN/results.tsv and {len(tables)} tables as TABLE.parquet in {folder}")


def charts(study: StudyName = None, lab: Lab = LAB, as_json: Json = False, debug: Debug = False) -> None:
    """Draw the pictures of a study. Each as PNG, as SVG, and as the Vega-Lite that it is made of."""
    from traces import charts, summary
    from traces.store import connect

    with connect(lab) as reader:
        name = summary.study(reader, study)["id"]
        drawn = {
            "running-best": charts.running_best(reader, name),
            "gains": charts.gains(reader, name),
            "curves": charts.curves(reader, summary.main_run(reader, name)),
        }
    paths = [lab / "charts" / f"{name}-{picture}.png" for picture in drawn]
    for chart, path in zip(drawn.values(), paths, strict=True):
        charts.save(chart, path)
    print(to_json({"study": name, "charts": list(map(str, paths))}) if as_json else "\n".join(map(str, paths)))


def doctor(lab: Lab = LAB, as_json: Json = False, debug: Debug = False) -> None:
    """Say what this machine can do. Confinement is tried out; exit status 2 if experiments cannot be run or trusted."""
    from rich.text import Text

    from bilevel import show
    from bilevel.doctor import examine

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    console = show.console_for()
    findings = []
    for finding in examine(lab):
        findings.append(finding)
        if not as_json:
            means = f"\n      {'':<22} {one_line(finding.means)}" if finding.means else ""
            state = (f"{finding.state:<5}", styles[finding.state])
            console.print(Text.assemble(state, f" {finding.name:<22} {one_line(finding.found)}{means}"), soft_wrap=True)
    failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        print(to_json({"ok": not failed, "findings": [vars(finding) for finding in findings]}))
    raise typer.Exit(2 if failed else 0)


def bounded(query: str, rows: int) -> str:
    """A query that answers at most so many rows; what cannot be a subquery stays as it is.

    Raises:
        UserError: it is not one statement of SQL.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise UserError(str(error).splitlines()[0]) from None
    if len(statements) != 1:
        raise UserError(f"one statement at a time, got {len(statements)}")
    statement = statements[0]
    if statement.type != duckdb.StatementType.SELECT:
        return query
    # On lines of their own, in case the query ends in a comment.
    return f"SELECT * FROM (\n{statement.query.rstrip().rstrip(';')}\n) LIMIT {rows}"  # noqa: S608

"""The command line as a person or a program meets it: real processes, a real record."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import unicodedata

import pytest

from bilevel.cli import app, find_task
from bilevel.config import Choices
from bilevel.options import MINI
from bilevel.reading import bounded
from traces.errors import UserError
from traces.store import Store, connect

from .conftest import BEGUN, HOSTILE, ROOT, TAMED, put_experiment, put_run

COMMANDS = sorted(command.callback.__name__ for command in app.registered_commands)
READING = [["status"], ["log"], ["diff", 0], ["sql", "FROM run"], ["export"], ["charts"], ["resume"]]


def complains(done, status=2):
    """The one line of an error."""
    assert (done.returncode, done.stdout) == (status, ""), done
    assert re.fullmatch(r"bilevel: [^\n]+\n", done.stderr), done.stderr
    return done.stderr


def test_every_promised_command_is_there():
    promised = "prepare calibrate run evolve demo resume status log diff sql export charts doctor"
    assert sorted(promised.split()) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_what_every_command_takes(here, command):
    done = here(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert "--debug" in done.stdout
    assert "--json" in done.stdout
    assert ("--lab" in done.stdout) == (command != "prepare")


def test_the_options_of_evolve_are_the_choices_of_a_study(here):
    help = here("evolve", "--help").stdout
    for name in set(Choices.model_fields) - {"command"}:
        assert f"--{name.replace('_', '-')} " in help


def test_without_a_word_it_says_what_there_is(cli):
    done = cli()
    assert done.returncode == 0 and all(command in done.stdout for command in COMMANDS)


def loaded_by(*arguments):
    code = "import sys; from bilevel.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr.split())


def test_help_loads_nothing_heavy():
    assert not {"torch", "langgraph", "duckdb", "numpy", "scipy", "altair", "openai", "git"} & loaded_by("--help")


def test_status_loads_no_more_than_the_record_needs(lab):
    with Store.open(lab) as store:
        put_run(store, "other.r1", study="other")
        store.put(
            "study",
            id="other",
            command="run",
            task="t",
            config={},
            seed=1,
            status="done",
            created=BEGUN.replace(hour=10),
        )
    assert not {"torch", "langgraph", "scipy", "altair", "openai", "git"} & loaded_by("status", "other", "--lab", lab)


@pytest.mark.parametrize("arguments", READING, ids=lambda words: str(words[0]))
def test_a_laboratory_that_is_not_there_is_one_line(here, tmp_path, arguments):
    assert "nowhere" in complains(here(*arguments, "--lab", "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", ["prepare", "run"])
def test_a_task_that_is_not_there_is_one_line(here, tmp_path, command):
    said = complains(here(command, "--task", "missing.toml"))
    assert "missing.toml" in said and "--task" in said
    assert not (tmp_path / "lab").exists()


def test_a_machine_without_git_is_told_so_before_anything_is_begun(cli, tmp_path):
    said = complains(cli("run", environment={"PATH": str(tmp_path)}))
    assert "git" in said and "install" in said
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["evolve", "--pairs", 1], "--pairs 1"),
        (["run", "--seconds", -3], "--seconds -3"),
        (["run", "--experiments", "many"], "--experiments"),
        (["run", "--colour"], "--colour"),
        (["diff"], "'N'"),
        (["ron"], "'run'"),
        (["sql", "FROM run", "--limit", 0], "--limit"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line_that_names_it(here, arguments, named):
    assert named in complains(here(*arguments))


def test_a_message_is_one_harmless_line_whatever_was_typed(here, lab):
    said = complains(here("log", "run\x1b[2J\nfake", "--lab", lab))
    assert "no run run fake" in said and "run-1.r1" in said and "\x1b" not in said


def test_the_folder_of_the_laboratory_may_come_from_the_environment(cli, lab):
    assert cli("log", environment={"BILEVEL_LAB": str(lab)}).stdout == cli("log", "--lab", lab).stdout


def test_a_failure_that_nobody_foresaw_is_one_line_too(here, lab):
    with Store.open(lab) as store:
        store.put("study", id="run-1", config=[1])
    said = complains(here("status", "--lab", lab), status=1)
    assert "AttributeError" in said and "--debug" in said


def test_debug_shows_where_an_error_came_from(cli, lab):
    done = cli("status", "nix", "--lab", lab, "--debug")
    assert done.returncode == 1 and "Traceback" in done.stderr and "LabError" in done.stderr


def test_what_is_not_a_laboratory_is_one_line(cli, tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "snapshot.duckdb").write_text("not a database")
    complains(cli("status"))


LONG = "SELECT repeat('x', 150) FROM range(2000)"


def test_a_reader_that_goes_away_is_no_error(lab):
    command = [sys.executable, "-m", "bilevel", "sql", LONG, "--limit", "2000", "--lab", str(lab)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reading:
        reading.stdout.readline()
        reading.stdout.close()
        assert "Traceback" not in reading.stderr.read()


def test_status_tells_what_became_of_a_study(cli, confirmed):
    shown = cli("status", "--lab", confirmed).stdout
    assert "stand-in" in shown  # the model
    assert "without confinement" in shown
    assert "integrity" in shown
    assert "0.0030 over 5 seeds" in shown
    assert re.search(r"run-1\.r1 +done +4/4 +2\.0000 +1\.7500 \(#1\) +\+0\.2500 +1 \(33%\)", shown)
    assert re.search(r"tabu +adopt +\+0\.0200 +\[\+0\.0100, \+0\.0300\] at 90% +4 +0\.0120 +7/9", shown)
    assert re.search(r"validation +2\.0000 +1\.8000 +\+0\.2000 +\[\+0\.1456, \+0\.2544\] at 80%", shown)


def test_status_as_json_has_the_keys_that_programs_read(here, confirmed):
    told = json.loads(here("status", "--json", "--lab", confirmed).stdout)
    assert set(told) == {"writer", "studies", "last"} and told["writer"] is None
    last = told["last"]
    assert {k: v for k, v in last.items() if k in told["studies"][0]} == told["studies"][0]
    assert last == json.loads(here("status", "run-1", "--json", "--lab", confirmed).stdout)
    search, confirm = sorted(last["runs"], key=lambda run: run["kind"], reverse=True)
    assert (search["baseline"], search["best"], search["gain"], search["keeps"]) == (2.0, 1.75, 0.25, 1)
    assert search["stagnation"]["longest_without_keep"] == 2 and confirm["stagnation"] is None
    assert (search["integrity_events"], search["model_is_stand_in"], search["self_reported"]) == (1, True, False)
    assert last["confirmed"][0]["gain"] == pytest.approx(0.2)
    assert [turn["decision"] for turn in last["meta_iterations"]] == ["adopt", None]


def test_a_laboratory_without_a_study_says_how_to_begin(here, tmp_path):
    Store.open(tmp_path / "lab").close()
    done = here("status")
    assert done.returncode == 0 and "bilevel run" in done.stdout
    assert json.loads(here("status", "--json").stdout) == {"writer": None, "studies": [], "last": None}
    assert "bilevel run" in complains(here("log"))


def test_a_study_that_was_killed_is_told_from_one_at_work(cli, lab):
    with Store.open(lab) as store:
        store.put("study", id="run-1", status="running")
        store.publish(force=True)
        at_work = cli("status", "--lab", lab).stdout
    killed = cli("status", "--lab", lab).stdout
    assert "is working on it" in at_work and "interrupted" not in at_work
    assert "interrupted" in killed and "bilevel resume" in killed


def test_scores_that_an_experiment_reports_itself_are_marked(here, confirmed):
    assert "self-reported" not in here("status", "--lab", confirmed).stdout + here("log", "--lab", confirmed).stdout
    with Store.open(confirmed) as store:
        for run in ("run-1.r1", "run-1.confirm"):
            store.put("run", id=run, metric_source="stdout")
    assert here("status", "--lab", confirmed).stdout.count("*self-reported*") == 3  # baseline, best, confirmed
    assert "score *self-reported*" in here("log", "--lab", confirmed).stdout
    assert json.loads(here("log", "--json", "--lab", confirmed).stdout)["experiments"][0]["self_reported"] is True


def test_log_shows_every_experiment_in_a_line(here, lab):
    lines = here("log", "--lab", lab).stdout.splitlines()
    assert lines[0] == "run-1.r1"
    assert re.match(r"#  from +decision +score +seconds +change +why", lines[2])
    assert re.match(r"0 +– +baseline +2\.0000 +5\.0 +– +the surface as it is", lines[3])
    assert re.match(r"1 +0 +keep \* +1\.7500 +5\.0 +DEPTH 4 → 6", lines[4])
    assert re.match(r"3 +0 +crash +– +– +– +ValueError", lines[6])
    assert "twice the noise floor" in lines[7]


def test_log_shows_an_experiment_that_is_not_decided(here, lab):
    with Store.open(lab) as store:
        put_experiment(store, "run-1.r1", 4, None, None)
    assert re.search(r"^4 +0 +running", here("log", "run-1.r1", "--lab", lab).stdout, re.MULTILINE)


def test_log_as_json_is_the_whole_rows(here, lab):
    told = json.loads(here("log", "--json", "--lab", lab).stdout)
    assert told["run"] == "run-1.r1"
    assert [row["status"] for row in told["experiments"]] == ["baseline", "keep", "discard", "crash"]
    assert told["experiments"][1]["hypothesis"] == HOSTILE  # data for programs is as it was recorded


def test_diff_shows_what_an_experiment_changed(here, lab):
    shown = here("diff", 1, "--lab", lab).stdout.splitlines()
    assert shown[3:5] == ["-DEPTH = 4", f"+DEPTH = 6  # {TAMED}"]
    unchanged = here("diff", 0, "--lab", lab)
    assert unchanged.stdout == "" and "unchanged" in unchanged.stderr
    assert HOSTILE in json.loads(here("diff", 1, "--run", "run-1.r1", "--json", "--lab", lab).stdout)["diff"]


def test_an_experiment_that_is_not_there_is_one_line_that_says_which_are(here, lab):
    assert "no experiment 9 in run run-1.r1" in (said := complains(here("diff", 9, "--lab", lab)))
    assert "0 to 3" in said


@pytest.mark.parametrize("command", [["status"], ["log"], ["diff", 1], ["sql", "FROM experiment"]], ids=lambda c: c[0])
def test_what_a_model_wrote_never_reaches_the_terminal_as_a_command(cli, lab, command):
    for colours in ({}, {"FORCE_COLOR": "1", "TERM": "xterm"}):
        shown = cli(*command, "--lab", lab, environment=colours | {"COLUMNS": "250"}).stdout
        shown = re.sub(r"\x1b\[[0-9;]*m", "", shown) if colours else shown  # our own colours
        assert TAMED in shown
        assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf") for c in shown)


def test_sql_answers_as_a_table_and_as_json(cli, lab):
    query = "SELECT index, status, score FROM experiment WHERE run = 'run-1.r1' ORDER BY index -- all"
    lines = cli("sql", query, "--lab", lab).stdout.splitlines()
    assert lines[0].split() == ["index", "status", "score"] and lines[2].split() == ["1", "keep", "1.75"]
    told = json.loads(cli("sql", query, "--json", "--lab", lab).stdout)
    assert told[3] == {"index": 3, "status": "crash", "score": None}


def test_sql_shows_a_wide_answer_column_by_column(here, lab):
    shown = here("sql", "FROM experiment WHERE run = 'run-1.r1'", "--lab", lab).stdout
    assert re.search(r"^score +1\.75$", shown, re.MULTILINE) and len(re.findall("^status ", shown, re.MULTILINE)) == 4


def test_sql_turns_what_is_not_a_number_into_null(here, lab):
    assert json.loads(here("sql", "SELECT measured FROM integrity_event", "--json", "--lab", lab).stdout) == [
        {"measured": None}
    ]


def test_sql_answers_no_more_than_the_limit_and_says_so(here, lab):
    done = here("sql", "FROM range(10)", "--limit", 3, "--json", "--lab", lab)
    assert len(json.loads(done.stdout)) == 3 and "more than 3 rows" in done.stderr
    exact = here("sql", "FROM range(3)", "--limit", 3, "--json", "--lab", lab)
    assert len(json.loads(exact.stdout)) == 3 and exact.stderr == ""


@pytest.mark.parametrize("query", ["SHOW TABLES;", "DESCRIBE run", "EXPLAIN SELECT 1", "WITH a AS (SELECT 1) FROM a"])
def test_sql_takes_other_statements_that_read(here, lab, query):
    done = here("sql", query, "--lab", lab)
    assert done.returncode == 0 and done.stdout


@pytest.mark.parametrize(
    "query", ["DELETE FROM run", "DROP TABLE run", "UPDATE study SET seed = 2", "selec", "", "SELECT x"]
)
def test_sql_that_writes_or_is_wrong_is_one_line_and_changes_nothing(here, lab, query):
    before = (lab / "snapshot.duckdb").read_bytes()
    assert f"in the query: {query}".strip() in complains(here("sql", query, "--lab", lab))
    assert (lab / "snapshot.duckdb").read_bytes() == before


def test_a_bounded_query_never_fetches_more(lab):
    with connect(lab) as reader:
        assert len(reader.rows(bounded("FROM range(1000000000) -- many", 5))) == 5
    with pytest.raises(UserError, match="one statement"):
        bounded("SELECT 1; SELECT 2", 5)


def test_export_writes_a_table_of_results_and_parquet(here, lab):
    told = json.loads(here("export", "--json", "--lab", lab).stdout)
    assert (lab / "export" / "run-1.r1" / "results.tsv").read_text().count("\n") == 5
    assert str(lab / "export" / "experiment.parquet") in told["tables"]
    assert here("export", "elsewhere", "--lab", lab).returncode == 0
    assert (lab.parent / "elsewhere" / "run.parquet").is_file()


def test_charts_are_drawn_and_named(here, lab):
    told = json.loads(here("charts", "--json", "--lab", lab).stdout)
    assert told["charts"]
    for path in told["charts"]:
        assert open(path, "rb").read(8) == b"\x89PNG\r\n\x1a\n"


def test_a_task_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_task(MINI) == str(ROOT / MINI)
    assert find_task("missing.toml") == "missing.toml"
    own = tmp_path / MINI
    own.parent.mkdir(parents=True)
    shutil.copy(ROOT / MINI, own)
    assert find_task(MINI) == MINI

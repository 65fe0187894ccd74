"""Whole studies from the command line: to their end, through Ctrl-C and kill -9, and wrongly asked for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from traces.store import Store, connect

ROOT = Path(__file__).parent.parent.parent
TOY = ROOT / "tests" / "tasks" / "toy.toml"
MINI = ROOT / "benchmarks" / "gpt" / "mini.toml"
SMALL = ["--task", TOY, "--seed", 5, "--slots", 2, "--repeats", 2, "--experiments", 8]
EVOLVE = ["evolve", *SMALL, "--meta-iterations", 2, "--pairs", 2, "--trial-experiments", 2]
RECORD = (
    "SELECT run, index, parent, status, change, score, hypothesis, seed, inherited, step "
    "FROM experiment ORDER BY run, index"
)


def begin(lab, *arguments):
    """The command line as a process of its own, its progress a line an event."""
    command = [sys.executable, "-m", "bilevel", *map(str, arguments), "--lab", str(lab)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process, expected=0):
    out, error = process.communicate(timeout=200)
    assert process.returncode == expected, error
    return out, error


def record(lab, query=RECORD):
    with connect(lab) as reader:
        return reader.rows(query)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that nothing disturbed."""
    lab = tmp_path_factory.mktemp("whole") / "lab"
    out, _ = finish(begin(lab, *EVOLVE, "--json"))
    return lab, json.loads(out)


def test_a_study_makes_all_its_parts(whole):
    lab, told = whole
    kinds = {row["kind"]: row["n"] for row in record(lab, "SELECT kind, count(*) AS n FROM run GROUP BY kind")}
    # Two repeats and two turns of two pairs; a measurement for the floor, after each turn, and at the end.
    assert kinds == {"search": 2 + 2 * 2 * 2, "calibrate": 1, "confirm": 2 + 1, "strategies": 1}
    assert told["status"] == "done"
    statuses = record(lab, "SELECT DISTINCT status FROM run")
    assert [row["status"] for row in statuses] == ["done"]


def test_every_turn_ends_in_a_decision_with_its_grounds(whole):
    turns = record(whole[0], "SELECT * FROM meta_iteration ORDER BY index")
    assert [turn["index"] for turn in turns] == [1, 2]
    for turn in turns:
        assert turn["decision"] in ("adopt", "reject", "indecisive", "invalid", "inert")
        assert turn["diagnosis"] and turn["mechanism"] and turn["reason"]
        assert turn["gain"] is not None and turn["pairs"] == 2


def test_the_arms_of_a_pair_share_seed_state_and_budget(whole):
    pairs = record(
        whole[0],
        "SELECT a.seed AS s, b.seed AS t, a.forked_from AS f, b.forked_from AS g, a.forked_at AS h, b.forked_at AS i, "
        "a.experiments AS m, b.experiments AS n, a.strategy AS x, b.strategy AS y "
        "FROM pair JOIN run a ON a.id = incumbent_run JOIN run b ON b.id = candidate_run",
    )
    assert len(pairs) == 4
    for pair in pairs:
        assert (pair["s"], pair["f"], pair["h"], pair["m"]) == (pair["t"], pair["g"], pair["i"], pair["n"])
        assert pair["x"] != pair["y"]


def test_each_experiment_is_one_commit_that_git_can_check_out(whole, tmp_path):
    lab, _ = whole
    runs = record(lab, "SELECT id, repository FROM run WHERE kind <> 'strategies'")
    for run in runs:
        rows = record(lab, f"SELECT index, commit FROM experiment WHERE run = '{run['id']}'")
        assert rows
        copy = tmp_path / run["id"]
        subprocess.run(["git", "clone", "-q", "--no-checkout", lab / run["repository"], copy], check=True)
        subprocess.run(["git", "fetch", "-q", "origin", "refs/experiments/*:refs/experiments/*"], cwd=copy, check=True)
        for row in rows:
            subprocess.run(["git", "checkout", "-q", f"refs/experiments/{row['index']}"], cwd=copy, check=True)
            head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=copy, check=True, capture_output=True, text=True)
            assert head.stdout.strip() == row["commit"]


def test_the_pictures_are_there(whole):
    pictures = sorted(path.name for path in (whole[0] / "charts").glob("*.png"))
    assert pictures == ["evolve-1-gains.png", "evolve-1-running-best.png"]


@pytest.mark.parametrize("decided", [2, 13, 27, 38])
def test_kill_9_and_resume_end_where_an_undisturbed_study_ends(whole, tmp_path, decided):
    lab = tmp_path / "lab"
    process = begin(lab, *EVOLVE)
    seen = 0
    for line in process.stderr:
        seen += " keep " in line or " discard " in line or " baseline " in line or " crash " in line
        if seen == decided:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Store.open(lab) as store:  # the killed writer's lock is free, and its record is whole
        assert store.rows("SELECT status FROM study") == [{"status": "running"}]
    finish(begin(lab, "resume"))
    assert record(lab) == record(whole[0])


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(whole, tmp_path):
    lab = tmp_path / "lab"
    process = begin(lab, *EVOLVE)
    next(line for line in process.stderr if " discard " in line or " keep " in line)
    process.send_signal(signal.SIGINT)
    _, error = finish(process, expected=130)
    assert "Traceback" not in error
    assert f"bilevel resume --lab {lab}" in error.splitlines()[-1]
    assert record(lab, "SELECT status FROM study") == [{"status": "stopped"}]
    finish(begin(lab, "resume"))
    assert record(lab) == record(whole[0])


def test_the_same_seed_gives_the_same_proposals_in_the_same_order(whole, tmp_path):
    finish(begin(tmp_path / "lab", *EVOLVE))
    assert record(tmp_path / "lab") == record(whole[0])


def test_a_finished_study_has_nothing_to_go_on_with(whole):
    _, error = finish(begin(whole[0], "resume"), expected=2)
    assert len(error.splitlines()) == 1 and "bilevel status" in error


def test_two_at_once_are_one_too_many_and_the_first_does_not_mind(tmp_path):
    lab = tmp_path / "lab"
    first = begin(lab, "run", *SMALL, "--experiments", 60)
    next(line for line in first.stderr if " baseline " in line)
    _, error = finish(begin(lab, "run", *SMALL), expected=2)
    assert len(error.splitlines()) == 1 and str(first.pid) in error
    finish(first)


def test_a_task_that_was_changed_is_not_gone_on_with(tmp_path):
    folder, lab = tmp_path / "tasks", tmp_path / "lab"
    shutil.copytree(TOY.parent, folder)
    process = begin(lab, "run", "--task", folder / "toy.toml", "--experiments", 6)
    next(line for line in process.stderr if " baseline " in line)
    process.kill()
    process.communicate()
    surface = folder / "toy.py"
    surface.write_text(surface.read_text().replace("LEFT = 4.0", "LEFT = 5.0"))
    _, error = finish(begin(lab, "resume"), expected=2)
    assert len(error.splitlines()) == 1 and "has changed" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "no/such.toml"], "no/such.toml"),
        (["--task", TOY, "--experiments", 1], "--experiments"),
        (["--task", TOY, "--model", "gpt-unknown"], "gpt-unknown"),
        (["--task", TOY, "--strategy", "no/such.py"], "no/such.py"),
        (["--task", ROOT / "benchmarks" / "gpt" / "task.toml"], "GPU"),
    ],
    ids=["task", "experiments", "model", "strategy", "no GPU"],
)
def test_a_wrong_choice_is_one_line_and_leaves_no_study(tmp_path, arguments, says):
    lab = tmp_path / "lab"
    _, error = finish(begin(lab, "run", *arguments), expected=2)
    assert len(error.splitlines()) == 1 and says in error
    assert not lab.exists() or record(lab, "SELECT * FROM study") == []


def test_a_baseline_that_does_not_run_says_so(tmp_path):
    shutil.copytree(TOY.parent, tmp_path / "tasks")
    surface = tmp_path / "tasks" / "toy.py"
    surface.write_text(surface.read_text().replace('KIND = "plain"', 'KIND = "bad"'))
    _, error = finish(begin(tmp_path / "lab", "run", "--task", surface.with_suffix(".toml")), expected=2)
    assert "this kind does not run" in error.splitlines()[-1]


def test_a_study_on_real_training_trains_scores_decides_and_confirms(tmp_path):
    lab = tmp_path / "lab"
    sizes = ["--experiments", 3, "--meta-iterations", 1, "--pairs", 2, "--trial-experiments", 1]
    seeds = ["--calibration-seeds", 2, "--confirmation-seeds", 2]
    finish(begin(lab, "evolve", "--task", MINI, "--seconds", 0.6, *sizes, *seeds))
    rows = record(lab, "SELECT * FROM experiment JOIN run ON run.id = run WHERE NOT inherited AND kind <> 'strategies'")
    scored = [row for row in rows if row["score"] is not None]
    assert len(scored) > len(rows) / 2
    for row in scored:
        assert 1 < row["score"] < 8.5
        assert row["train_seconds"] > 0 and row["score_seconds"] > 0 and row["steps"] >= 1
        assert row["tier"] == "bubblewrap"
    assert all(row["sealed_score"] for row in scored if row["run"] == "evolve-1.confirm")
    assert {row["sealed_score"] for row in scored if row["run"] != "evolve-1.confirm"} == {None}
    curves = record(lab, "SELECT DISTINCT run, experiment FROM curve")
    assert len(curves) == len(scored)
    (turn,) = record(lab, "SELECT decision, calls_compared FROM meta_iteration")
    assert turn["decision"] and turn["calls_compared"]

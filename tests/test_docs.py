"""The documents say what is so: the README's commands run, and its links and files are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOY = ROOT / "tests" / "tasks" / "toy.toml"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for line in "".join(BLOCKS).splitlines()
    if line.strip() and not line.startswith("#")
]
# What the README runs to look at a study is run on one; what would train for long is only parsed.
LONG = ("prepare", "calibrate", "run", "evolve", "resume", "demo")


def bilevel(*arguments, cwd):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bilevel", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a study was made, as `make demo` makes it in the checkout."""
    folder = tmp_path_factory.mktemp("user")
    done = bilevel("demo", "--task", TOY, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_readme_has_commands():
    assert ["make", "demo"] in COMMANDS and ["make", "test"] in COMMANDS
    assert sum(command[0] == "bilevel" for command in COMMANDS) > 8


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] == "bilevel" and c[1] not in LONG], ids=" ".join)
def test_what_looks_at_a_study_runs(folder, command):
    done = bilevel(*command[1:], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] == "bilevel" and c[1] in LONG], ids=" ".join)
def test_what_makes_a_study_is_understood(folder, command):
    done = bilevel(*command[1:], "--help", cwd=folder)
    assert done.returncode == 0, done.stderr
    # `--help` is answered before options are looked at, so each is looked for in the answer.
    for option in (word for word in command if word.startswith("--")):
        assert re.search(rf"(?<!\S){option}\b", done.stdout)


@pytest.mark.parametrize("target", [c[1] for c in COMMANDS if c[0] == "make"])
def test_make_knows_its_targets(target):
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_and_choice_of_the_command_line_says_what_it_is_for(folder):
    listed = re.findall(r"^  (\w+)  +\S", bilevel("--help", cwd=folder).stdout.partition("Commands")[2], re.MULTILINE)
    assert {"prepare", "calibrate", "run", "evolve", "demo", "resume", "status", "log", "diff", "sql", "export"} <= set(
        listed
    )


def test_links_and_pictures_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target

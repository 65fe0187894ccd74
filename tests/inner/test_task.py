"""A task file is checked before anything runs: what does not hold is one line with the value, the file, the way out."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from inner.task import Task, load_task
from traces.errors import TaskError

SURFACE = """DEPTH = 4
LR = 0.02
PATTERN = "SL"
BETAS = (0.8, 0.95)
COMPUTED = DEPTH * 2
"""
TASK = """
name = "tiny"
surface = "train.py"

[metric]
name = "val_bpb"
direction = "minimize"
source = "scorer"

[budget]
seconds = 5
clock = "cpu"

[data]
source = "stdlib"
vocab_size = 512
context = 16

[scoring]
tokens = 64
rows = 2

[constants.DEPTH]
kind = "int"
low = 1
high = 8

[constants.LR]
kind = "float"
low = 0.001
high = 1.0
scale = "log"

[constants.PATTERN]
kind = "choice"
choices = ["S", "SL", "L"]

[constants.BETAS]
kind = "choice"
choices = [[0.8, 0.95], [0.9, 0.99]]
"""


def write(folder: Path, task: str | bytes = TASK, surface: str | bytes = SURFACE) -> Path:
    for name, content in (("train.py", surface), ("tiny.toml", task)):
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "tiny.toml"


def edited(*pairs: tuple[str, str]) -> str:
    text = TASK
    for old, new in pairs:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


def refusal(path: Path, **changes: float) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(path, **changes)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def test_a_good_file_is_read_as_it_is(tmp_path):
    task = load_task(write(tmp_path))
    assert isinstance(task, Task)
    assert (task.name, task.surface, task.surface_name) == ("tiny", SURFACE, "train.py")
    assert (task.budget.seconds, task.budget.clock, task.metric.source) == (5.0, "cpu", "scorer")
    assert list(task.constants) == ["DEPTH", "LR", "PATTERN", "BETAS"]
    assert task.constants["BETAS"].choices == ((0.8, 0.95), (0.9, 0.99))
    assert task.constants["LR"].name == "LR"
    assert task.path.is_absolute()


def test_a_strategy_sees_the_space_and_the_budget_but_no_path(tmp_path):
    task = load_task(write(tmp_path))
    view = task.view(30)
    assert (view.name, view.metric, view.direction, view.experiments) == ("tiny", "val_bpb", "minimize", 30)
    assert (view.budget_seconds, view.constants) == (5.0, task.constants)
    assert str(tmp_path) not in repr(view)


def test_overrides_change_the_surface_and_nothing_else_of_it(tmp_path):
    path = write(tmp_path, TASK + "[overrides]\nDEPTH = 8\nBETAS = [0.9, 0.99]\n")
    assert load_task(path).surface == SURFACE.replace("= 4", "= 8").replace("(0.8, 0.95)", "(0.9, 0.99)")


def test_changes_replace_keys_of_the_budget_and_none_leaves_them(tmp_path):
    path = write(tmp_path)
    assert load_task(path, seconds=0.5).budget.seconds == 0.5
    assert load_task(path, seconds=None).budget.seconds == 5.0
    assert "budget.seconds" in refusal(path, seconds=-1.0)
    assert "-1.0" in refusal(path, seconds=-1.0)


def test_any_other_program_needs_a_pattern_and_no_scoring(tmp_path):
    scoring = TASK[TASK.index("[scoring]") : TASK.index("[constants.DEPTH]")]
    path = write(tmp_path, edited(('source = "scorer"', 'source = "json"\npattern = "a.b"'), (scoring, "")))
    task = load_task(path)
    assert (task.metric.source, task.metric.pattern, task.scoring) == ("json", "a.b", None)
    assert task.hash != load_task(write(tmp_path)).hash


BAD = {
    "a wrong type": ([("seconds = 5", 'seconds = "5"')], ["budget.seconds", "'5'"]),
    "a number for a word": ([('name = "tiny"', "name = 5")], ["name", "got 5"]),
    "a table for a number": ([("seconds = 5", "seconds = {}")], ["budget.seconds"]),
    "a truth for a number": ([("seconds = 5", "seconds = true")], ["budget.seconds", "True"]),
    "a number for a table": ([("[metric]", "[x]"), ('"tiny"', '"tiny"\nmetric = 5')], ["metric", "got 5"]),
    "a name that is no file name": ([('name = "tiny"', 'name = "a/b"')], ["name", "'a/b'"]),
    "a missing key": ([("seconds = 5", "")], ["lacks the key budget.seconds"]),
    "a missing table": ([("[budget]\nseconds = 5\nclock", "[x]\nclock")], ["lacks the key budget"]),
    "an unknown key": ([("seconds = 5", "seconds = 5\nsecnds = 5")], ["unknown key budget.secnds"]),
    "an unknown table": ([("[data]", "[dat]")], ["unknown key dat"]),
    "a clock that is none": ([('"cpu"', '"sun"')], ["budget.clock", "'sun'"]),
    "no time": ([("seconds = 5", "seconds = 0")], ["budget.seconds", "got 0"]),
    "endless time": ([("seconds = 5", "seconds = inf")], ["budget.seconds", "inf"]),
    "time that is no number": ([("seconds = 5", "seconds = nan")], ["budget.seconds", "nan"]),
    "a half row": ([("tokens = 64", "tokens = 65")], ["scoring.tokens must be a multiple", "32"]),
    "one row of scoring": ([("tokens = 64\nrows = 2", "tokens = 16\nrows = 1")], ["at least two rows"]),
    "a context of one token": ([("context = 16", "context = 1")], ["data.context", "got 1"]),
    "too small a vocabulary": ([("512", "256")], ["data.vocab_size", "256"]),
    "more tokens than 16 bits hold": ([("512", "65537")], ["data.vocab_size", "65537"]),
    "a scorer without scoring": ([("[scoring]\ntokens = 64\nrows = 2", "")], ["needs a [scoring]"]),
    "a scorer with a pattern": ([('"scorer"', '"scorer"\npattern = "x"')], ["metric", "takes no pattern"]),
    "a program without a pattern": ([('"scorer"', '"stdout"')], ["metric", "needs a pattern"]),
    "a program with scoring": ([('"scorer"', '"json"\npattern = "x"')], ["takes no [scoring]"]),
    "a pattern without a group": ([('"scorer"', '"stdout"\npattern = "x"')], ["exactly one group"]),
    "a pattern that is none": ([('"scorer"', '"stdout"\npattern = "("')], ["no regular expression"]),
    "a pattern out of bounds": ([('"scorer"', '"stdout"\npattern = "(a{9999999999})"')], ["no regular expression"]),
    "bounds the wrong way": ([("low = 1\nhigh = 8", "low = 8\nhigh = 1")], ["constants.DEPTH", "low < high"]),
    "a number without bounds": ([("low = 1\nhigh = 8", "low = 1")], ["constants.DEPTH", "low < high"]),
    "a bound that is none": ([("high = 8", "high = inf")], ["constants.DEPTH.high", "inf"]),
    "no whole number": ([("low = 1\nhigh = 8", "low = 1.2\nhigh = 1.8")], ["constants.DEPTH", "no whole number"]),
    "a log of what is negative": ([("low = 0.001", "low = -0.001")], ["constants.LR", "log scale"]),
    "a choice of one": ([('["S", "SL", "L"]', '["SL"]')], ["constants.PATTERN", "at least two choices"]),
    "a choice with a bound": ([('choices = ["S"', 'low = 1\nchoices = ["S"')], ["constants.PATTERN", "no bounds"]),
    "a choice that is no value": ([('["S", "SL", "L"]', '["SL", 1979-05-27]')], ["constants.PATTERN", "a number"]),
    "a kind that is none": ([('kind = "int"', 'kind = "whole"')], ["constants.DEPTH.kind", "'whole'"]),
    "an unknown constant": ([("[constants.DEPTH]", "[constants.DEPHT]")], ["unknown constant DEPHT", "train.py"]),
    "a constant that is computed": ([("constants.DEPTH", "constants.COMPUTED")], ["unknown constant COMPUTED"]),
    "a default outside its space": ([("high = 8", "high = 3")], ["DEPTH = 4", "widen [constants.DEPTH]"]),
    "a default that is no choice": ([('"SL", "L"]', '"L"]')], ["PATTERN = 'SL'", "widen"]),
    "a surface that is missing": ([("train.py", "trian.py")], ["trian.py cannot be read", "No such file"]),
    "a surface that is a folder": ([('"train.py"', '"folder.py"')], ["folder.py cannot be read", "directory"]),
    "a surface that is no Python": ([("train.py", "train.sh")], ["surface", "'train.sh'"]),
    "a surface with a null in its name": ([('"train.py"', '"a\\u0000.py"')], ["cannot be read", "null"]),
    "not TOML": ([("[budget]", "[budget")], ["is not TOML", "line"]),
    "a key twice": ([("seconds = 5", "seconds = 5\nseconds = 6")], ["is not TOML"]),
    "too deep a list": ([("seconds = 5", f"seconds = {'[' * 5000}")], ["is not TOML"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named_with_the_value_and_the_way_out(tmp_path, case):
    pairs, words = BAD[case]
    (tmp_path / "folder.py").mkdir()
    message = refusal(write(tmp_path, edited(*pairs)))
    assert "tiny.toml" in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("DEPHT = 8", ["unknown constant DEPHT"]),
        ("DEPTH = 99", ["DEPTH = 99", "widen [constants.DEPTH]"]),
        ("DEPTH = 2.5", ["DEPTH = 2.5", "widen"]),
        ("COMPUTED = 8", ["unknown constant COMPUTED"]),
        ("FREE = inf", ["FREE = inf", "[overrides]"]),
        ("FREE = { a = 1 }", ["FREE", "[overrides]"]),
        ("FREE = 1979-05-27", ["FREE", "[overrides]"]),
    ],
)
def test_a_bad_override_is_named(tmp_path, line, words):
    message = refusal(write(tmp_path, f"{TASK}[overrides]\n{line}\n", SURFACE + "FREE = 1\n"))
    for word in ["tiny.toml", *words]:
        assert word in message, message


@pytest.mark.parametrize(
    ("surface", "words"),
    [
        (SURFACE + "def f(:\n", ["train.py line 6"]),
        (SURFACE.encode() + b"# \xff\n", ["train.py cannot be read", "UTF-8"]),
        (SURFACE + "x = '\0'\n", ["train.py"]),
        (SURFACE.replace("= 4", f"= {10**400}"), ["DEPTH", "widen"]),
        (SURFACE.replace("= 4", "= 1e999"), ["DEPTH", "widen"]),
        (SURFACE + "DEPTH = 5\n", ["unknown constant DEPTH"]),
        ("", ["unknown constant DEPTH"]),
    ],
    ids=["syntax", "not UTF-8", "a null", "a huge number", "infinite", "bound twice", "empty"],
)
def test_a_bad_surface_is_named(tmp_path, surface, words):
    message = refusal(write(tmp_path, surface=surface))
    for word in words:
        assert word in message, message


def test_no_file_a_folder_and_no_text_are_no_tasks(tmp_path):
    assert "no task file" in refusal(tmp_path / "none.toml")
    assert "--task" in refusal(tmp_path / "none.toml")
    assert "directory" in refusal(tmp_path)
    assert "UTF-8" in refusal(write(tmp_path, b"\xff\xfe"))
    assert "lacks the key" in refusal(write(tmp_path, ""))


CHANGES = [
    ('"minimize"', '"maximize"'),
    ('name = "val_bpb"', 'name = "other"'),
    ("seconds = 5", "seconds = 6"),
    ('"cpu"', '"wall"'),
    ('clock = "cpu"', 'clock = "cpu"\ngrace_seconds = 1'),
    ('clock = "cpu"', 'clock = "cpu"\nthreads = 2'),
    ('clock = "cpu"', 'clock = "cpu"\nmemory_gib = 2'),
    ('"stdlib"', '"site"'),
    ("512", "513"),
    ("context = 16", "context = 8"),
    ("tokens = 64", "tokens = 96"),
    ("tokens = 64", "tokens = 64\ntolerance = 0.1"),
    ("rows = 2", "rows = 4"),
    ("high = 8", "high = 9"),
    ("low = 0.001", "low = 0.002"),
    ('scale = "log"', 'scale = "linear"'),
    ('"SL", "L"]', '"SL", "LL"]'),
    ("high = 8", "high = 8\npower_of_two = true"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_the_hash_changes_with_what_an_experiment_means(tmp_path, old, new):
    before = load_task(write(tmp_path)).hash
    assert load_task(write(tmp_path, edited((old, new)))).hash != before


def test_the_hash_changes_with_the_surface_and_the_overrides(tmp_path):
    hashes = {
        load_task(write(tmp_path)).hash,
        load_task(write(tmp_path, surface=SURFACE + "# more\n")).hash,
        load_task(write(tmp_path, TASK + "[overrides]\nDEPTH = 5\n")).hash,
    }
    assert len(hashes) == 3


def test_the_hash_does_not_change_with_a_place_a_name_or_a_comment(tmp_path):
    task = load_task(write(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    other = load_task(write(tmp_path / "elsewhere", edited(('"tiny"', '"other"')) + "# a comment\n"))
    assert other.hash == task.hash == load_task(write(tmp_path)).hash
    assert replace(task, path=Path("/nowhere")).hash == task.hash


def test_the_tasks_that_come_with_it_hold():
    folder = Path(__file__).parents[2] / "benchmarks" / "gpt"
    files = sorted(folder.glob("*.toml"))
    assert {path.name for path in files} >= {"task.toml", "mini.toml"}
    for path in files:
        assert load_task(path).name == tomllib.loads(path.read_text())["name"]

"""The edit changes what it was asked to, and nothing else."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inner.edit import MAX_CHARACTERS, apply, apply_constants, diff, read_constants
from inner.history import Block, Change, Constant, Value
from traces.errors import EditError, TaskError

SURFACE = '''"""A surface."""

import math

DEPTH = 8  # layers
WINDOW_PATTERN = "SSSL"
TOTAL_BATCH_SIZE = 2**19
EMBEDDING_LR: float = 3e-1
ADAM_BETAS = (0.8, 0.95)
ROPE = [10_000, 500]
WIDTH = DEPTH * 64
TWICE = 1
TWICE = 2
if WIDTH > 4:
    NESTED = 3
lower = 4


def f():
    LOCAL = 5
    return LOCAL
'''

SPACE = {
    "DEPTH": Constant("DEPTH", "int", 1, 32),
    "TOTAL_BATCH_SIZE": Constant("TOTAL_BATCH_SIZE", "int", 2**12, 2**21, "log", power_of_two=True),
    "EMBEDDING_LR": Constant("EMBEDDING_LR", "float", 1e-3, 10.0, "log"),
    "WINDOW_PATTERN": Constant("WINDOW_PATTERN", "choice", choices=("SSSL", "L")),
}

holds = settings(deadline=None, derandomize=True)
numbers = st.one_of(st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False))
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.one_of(numbers, strings, st.lists(numbers, max_size=4).map(tuple))


@st.composite
def surfaces(draw: st.DrawFn) -> tuple[str, dict[str, Value]]:
    """A module of constants between comments in any script, with any line ending, and what they are."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    noise = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).map(lambda t: f"# {t}")
    text, constants = "", {}
    for i, value in enumerate(draw(st.lists(values, min_size=1, max_size=5))):
        gap = draw(st.sampled_from(["", " ", "\t", "  \t "]))
        literal = draw(st.sampled_from([f"{value!r}", f"({value!r})", f"(  # why{end}\t{value!r}{end})"]))
        before = draw(st.sampled_from([f"{draw(noise)}{end}", "\x0c", f"if 1:{end}\tx{i} = 'é'{end}", "é = 1; "]))
        text += f"{before}C_{i}{gap}={gap}{literal}{draw(st.sampled_from(['', ';']))}{gap}{draw(noise)}{end}"
        constants[f"C_{i}"] = value
    return text, constants


def same(one: Value, other: Value) -> bool:
    return repr(one) == repr(other)


def test_constants_are_upper_case_names_bound_once_to_a_literal() -> None:
    assert read_constants(SURFACE) == {
        "DEPTH": 8,
        "WINDOW_PATTERN": "SSSL",
        "TOTAL_BATCH_SIZE": 524288,
        "EMBEDDING_LR": 0.3,
        "ADAM_BETAS": (0.8, 0.95),
        "ROPE": (10_000, 500),
    }


@holds
@given(surfaces())
def test_every_literal_is_read_as_it_was_written(given_surface: tuple[str, dict[str, Value]]) -> None:
    surface, constants = given_surface
    assert all(same(v, constants[k]) for k, v in read_constants(surface).items())
    assert read_constants(surface).keys() == constants.keys()


@holds
@given(surfaces(), st.data())
def test_a_set_constant_reads_back_and_every_other_byte_stays(
    given_surface: tuple[str, dict[str, Value]], data: st.DataObject
) -> None:
    surface, constants = given_surface
    wanted = {name: data.draw(values) for name in constants if data.draw(st.booleans())}
    after = apply_constants(surface, wanted)
    assert all(same(v, (constants | wanted)[k]) for k, v in read_constants(after).items())
    # Setting them back restores the text, up to how a literal is spelt: the rest was not touched.
    spelt = apply_constants(surface, {name: 7 for name in wanted})
    assert apply_constants(after, {name: 7 for name in wanted}) == spelt


@holds
@given(surfaces())
def test_setting_a_constant_to_what_it_is_leaves_the_text_alone(given_surface: tuple[str, dict[str, Value]]) -> None:
    surface, _ = given_surface
    assert apply_constants(surface, read_constants(surface)) == surface


def test_only_the_literal_of_a_line_changes() -> None:
    after = apply_constants(SURFACE, {"DEPTH": 12, "EMBEDDING_LR": 1e-5, "ROPE": (1, 2), "WINDOW_PATTERN": "L"})
    wanted = SURFACE.replace("= 8  #", "= 12  #").replace("3e-1", "1e-05")
    assert after == wanted.replace("[10_000, 500]", "[1, 2]").replace('"SSSL"', '"L"')


@pytest.mark.parametrize("name", ["WIDTH", "TWICE", "NESTED", "LOCAL", "lower", "ABSENT", "math"])
def test_a_name_that_is_no_constant_cannot_be_set(name: str) -> None:
    with pytest.raises(EditError, match=rf"^'{name}' is not a constant of t\.py"):
        apply_constants(SURFACE, {name: 1}, "t.py")


@pytest.mark.parametrize(
    "value", [float("inf"), float("nan"), None, {"a": 1}, b"x", ((1, 2), 3), 10**5000], ids=lambda v: type(v).__name__
)
def test_a_value_without_a_literal_is_refused(value: Value) -> None:
    with pytest.raises(EditError, match="DEPTH"):
        apply_constants(SURFACE, {"DEPTH": value})


def test_a_surface_that_is_not_python_is_named_with_its_line() -> None:
    with pytest.raises(TaskError, match=r"^my\.py line 3: .*mend"):
        read_constants("A = 1\nB = 2\nC = (\n", "my.py")


@holds
@given(st.text(max_size=60), st.text(max_size=20), st.dictionaries(st.text(max_size=5), values, max_size=2))
def test_any_text_is_answered_or_refused_in_one_line(text: str, other: str, constants: dict[str, Value]) -> None:
    for attempt in (
        lambda: read_constants(text),
        lambda: apply_constants(text, constants),
        lambda: apply(
            text,
            Change(constants=constants),
            {name: Constant(name, "int", 0, 9) for name in constants if name.isidentifier()},
        ),
        lambda: apply(text, Change(blocks=(Block(other, text), Block(text, other))), {}),
        lambda: apply(SURFACE, Change(text=text), {}),
    ):
        try:
            attempt()
        except (EditError, TaskError) as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["(" * 10_000, "-" * 100_000 + "1", "1+" * 100_000 + "1", "a = '\ud800'", "a\0"])
def test_text_that_breaks_the_parser_is_refused(text: str) -> None:
    with pytest.raises(EditError):
        apply(SURFACE, Change(text=text), {})


def test_constants_blocks_and_a_whole_text_apply() -> None:
    assert apply(SURFACE, Change({"DEPTH": 9}), SPACE) == SURFACE.replace("= 8", "= 9")
    blocks = (Block("DEPTH = 8", "DEPTH = 9"), Block("DEPTH = 9  # layers", "DEPTH = 10"))
    assert apply(SURFACE, Change(blocks=blocks), SPACE) == SURFACE.replace("DEPTH = 8  # layers", "DEPTH = 10")
    assert apply(SURFACE, Change(text="A = 1\n"), SPACE) == "A = 1\n"


def test_an_empty_change_is_the_surface_as_it_is() -> None:
    assert apply("not Python (", Change(), SPACE) == "not Python ("


def test_a_whole_number_for_a_float_is_written_as_a_float() -> None:
    assert read_constants(apply(SURFACE, Change({"EMBEDDING_LR": 1}), SPACE))["EMBEDDING_LR"] == 1.0
    assert "EMBEDDING_LR: float = 1.0\n" in apply(SURFACE, Change({"EMBEDDING_LR": 1}), SPACE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Change({"DEPTH": 64}), "DEPTH = 64 is not allowed in t.py: propose a whole number from 1 to 32"),
        (Change({"DEPTH": 8.5}), "DEPTH = 8.5 is not allowed in t.py: propose a whole number from 1 to 32"),
        (Change({"DEPTH": True}), "DEPTH = True is not allowed"),
        (Change({"DEPTH": 10**5000}), "DEPTH = a number too long to write is not allowed"),
        (Change({"WINDOW_PATTERN": "S"}), "WINDOW_PATTERN = 'S' is not allowed in t.py: propose one of 'SSSL', 'L'"),
        (Change({"ADAM_BETAS": (0.9, 0.9)}), "'ADAM_BETAS' is not in the space of t.py: propose one of DEPTH, TOTAL"),
        (Change({"DEPTH": 8}), "changes nothing in t.py"),
        (Change(text=SURFACE), "changes nothing in t.py"),
        (Change(blocks=(Block("DEPTH = 8", "DEPTH = 8"),)), "changes nothing in t.py"),
        (Change({"DEPTH": 9}, text="A = 1"), "one kind, got constants and a whole text"),
        (Change(blocks=(Block("DEPHT = 8  # layers", "x"),)), "block 1 of 1 occurs 0 times in t.py"),
        (Change(blocks=(Block("DEPHT = 8  # layers", "x"),)), "is line 5, 'DEPTH = 8  # layers'"),
        (Change(blocks=(Block("%%%%", "x"),)), "no line is like '%%%%'"),
        (Change(blocks=(Block("DEPTH", "x"),)), "block 1 of 1 occurs 2 times in t.py"),
        (Change(blocks=(Block("", "x"),)), "searches for nothing in t.py"),
        (Change(blocks=(Block("(0.8, 0.95)", "(0.8, 0.95"),)), "does not leave Python: t.py line 9"),
        (Change(text="#" * (MAX_CHARACTERS + 1)), f"{MAX_CHARACTERS + 1} characters long"),
    ],
    ids=lambda v: v[:40] if isinstance(v, str) else "",
)
def test_a_change_that_does_not_apply_says_what_and_the_way_out(change: Change, message: str) -> None:
    with pytest.raises(EditError, match=re.escape(message)):
        apply(SURFACE, change, SPACE, "t.py")


def test_occurrences_that_overlap_are_counted() -> None:
    with pytest.raises(EditError, match="2 times"):
        apply("A = 'xyxyx'\n", Change(blocks=(Block("xyx", "z"),)), {})


@holds
@given(before=surfaces(), after=surfaces(), cut=st.booleans())
def test_the_diff_is_one_that_git_applies(
    tmp_path_factory: pytest.TempPathFactory,
    before: tuple[str, dict[str, Value]],
    after: tuple[str, dict[str, Value]],
    cut: bool,
) -> None:
    one, two = before[0], after[0].rstrip("\n") if cut else after[0]
    folder: Path = tmp_path_factory.mktemp("diff")
    (folder / "train.py").write_bytes(one.encode())
    patch = diff(one, two)
    assert bool(patch) == (one != two)
    if patch:
        git = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "--unidiff-zero", "-"]
        subprocess.run(git, cwd=folder, input=patch.encode(), check=True, capture_output=True)
    assert (folder / "train.py").read_bytes() == two.encode()

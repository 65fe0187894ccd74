"""What a model wrote reaches a terminal as text and as nothing else."""

import json
import math
import unicodedata
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bilevel.text import change_of, duration, interval, number, one_line, plain, to_json

ESCAPE_HEAVY = st.text(st.sampled_from("\x1b[];?0123mHJK\x07\\\x9b\x9c\x9d\r\n\tab\u202e\u200b\u2028é漢\ud800 ()#P_"))


def harmless(text: str) -> bool:
    return all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


@given(st.text() | ESCAPE_HEAVY)
def test_nothing_that_a_terminal_acts_on_is_left(text):
    assert harmless(plain(text))
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


@given(st.text() | ESCAPE_HEAVY)
def test_what_was_made_harmless_stays_as_it_is(text):
    assert plain(plain(text)) == plain(text)
    assert one_line(one_line(text)) == one_line(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_ordinary_text_stays_as_it_is_brackets_counted_in(text):
    assert plain(text) == text


@pytest.mark.parametrize(
    ("hostile", "tamed"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b1;31mred", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bc\x1b(0text", "text"),
        ("done\rfail", "done\nfail"),
        ("a\x08b\x00c\x7f", "abc"),
        ("\u202eevil\u2066", "evil"),
        ("[red]not markup[/red]", "[red]not markup[/red]"),
    ],
)
def test_terminal_escapes_go_and_the_words_stay(hostile, tamed):
    assert plain(hostile) == tamed


def test_a_command_that_never_ends_hides_nothing_after_it():
    assert "the rest" in plain("\x1b]0;begun\nthe rest")
    assert "the rest" in plain("\x1b]0;the rest")


@given(st.text(), st.integers(1, 40))
def test_a_limit_holds(text, limit):
    assert len(one_line(text, limit)) <= limit


@given(st.floats(-1e300, 1e300) | st.just(math.nan) | st.just(math.inf))
def test_a_number_is_shown_or_a_dash(value):
    shown = number(value)
    assert (shown == "–") == (not math.isfinite(value))
    if math.isfinite(value):
        assert math.isclose(float(shown), value, rel_tol=0.06, abs_tol=1e-4)


def test_what_is_not_known_is_a_dash():
    assert [number(None), number("x"), duration(None), interval(0.1, None), interval(math.inf, 1)] == ["–"] * 5


def test_a_duration_reads_as_a_clock():
    assert [duration(5), duration(65), duration(3661), duration(59.6)] == ["0:05", "1:05", "1:01:01", "1:00"]


def test_a_change_names_constants_blocks_and_files():
    moves = [{"constant": "DEPTH", "before": 4, "after": 6}, {"constant": "MATRIX_LR", "before": None, "after": 0.02}]
    assert change_of({"moves": moves, "change": {"blocks": [1, 2]}}) == "DEPTH 4 → 6, MATRIX_LR – → 0.02, 2 blocks"
    assert change_of({"moves": None, "change": {"text": ""}}) == "the whole file"
    assert change_of({}) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_plain_data_survives_json(value):
    assert json.loads(to_json(value)) == value


def test_what_json_cannot_say_becomes_null_or_text():
    told = {"nan": math.nan, "far": -math.inf, "when": datetime(2026, 1, 2, 3), "exact": Decimal("1.5"), "raw": b"\x01"}
    assert json.loads(to_json(told)) == {
        "nan": None, "far": None, "when": "2026-01-02T03:00:00", "exact": 1.5, "raw": "01"
    }  # fmt: skip


@given(st.text() | ESCAPE_HEAVY)
def test_json_itself_is_harmless_on_a_terminal(text):
    assert harmless(to_json({"text": text}))

"""What a person sees while a study runs, for scripted events."""

from __future__ import annotations

import io
import re
import threading
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bilevel.progress import Tally, watching

HOSTILE = "bad\x1b[2J\x1b]0;t\x07[bold]x[/bold]\u202e"
MOVE = {"constant": "DEPTH", "direction": "up", "before": 4, "after": 6}
DECIDED = {
    "run": "d.r1",
    "baseline": 2.0,
    "seed": 1,
    "moves": [MOVE],
    "change": {},
    "hypothesis": HOSTILE,
    "detail": None,
}

SCRIPT = [
    ("study", {"study": "demo-1", "command": "demo", "task": "mini", "slots": 2, "tier": "bubblewrap", "trainings": 8,
               "model": "prior", "stand_in": True}),
    ("stage", {"title": "Noise floor"}),
    ("measuring", {"run": "d.noise", "kind": "calibrate", "count": 2}),
    ("measured", {"run": "d.noise", "kind": "calibrate", "index": 1, "label": "baseline", "seed": 5, "score": 2.0}),
    ("measured", {"run": "d.noise", "kind": "calibrate", "index": 2, "label": "baseline", "seed": 6, "score": None,
                  "status": "crash", "detail": HOSTILE}),
    ("noise", {"sd": 0.003, "low": 0.002, "high": 0.009, "n": 2, "mean": 2.0}),
    ("stage", {"title": "Level 1"}),
    ("training", {"run": "d.r1", "index": 0}),
    ("decided", DECIDED | {"index": 0, "status": "baseline", "score": 2.0, "best": 2.0, "moves": []}),
    ("training", {"run": "d.r1", "index": 1}),
    ("decided", DECIDED | {"index": 1, "status": "keep", "significant": True, "score": 1.75, "best": 1.75}),
    ("decided", DECIDED | {"index": 2, "status": "crash", "score": None, "best": 1.75, "detail": HOSTILE}),
    ("diagnosed", {"index": 0, "diagnosis": HOSTILE}),
    ("researched", {"index": 0, "mechanism": "tabu", "rationale": HOSTILE}),
    ("checked", {"index": 0, "ok": False, "findings": ["too slow", HOSTILE]}),
    ("verdict", {"index": 0, "decision": "adopt", "reason": HOSTILE, "gain": 0.02, "low": 0.01, "high": 0.03,
                 "confidence": 0.9, "pairs": 4, "detectable": 0.01, "calls_differing": 3, "calls_compared": 9}),
    ("confirmed", {"split": "sealed", "gain": 0.2, "low": 0.1, "high": 0.3, "confidence": 0.9, "n": 3, "baseline": 2.0,
                   "best": 1.8}),
    ("note", {"text": HOSTILE}),
    ("picture", {"path": "lab/charts/a.png"}),
]  # fmt: skip


def lines(events):
    """What is printed where there is no terminal."""
    out = io.StringIO()
    with watching(Console(file=out, width=80)) as report:
        for kind, data in events:
            report(kind, dict(data))
    return out.getvalue().splitlines()


def test_one_line_an_event_and_none_for_a_kind_that_is_not_known():
    assert len(lines(SCRIPT)) == len(SCRIPT)
    assert lines([("mystery", {"run": "d.r1"}), *SCRIPT[:1]]) == lines(SCRIPT[:1])


def test_lines_are_a_time_a_count_a_word_and_the_facts_in_columns():
    told = [re.match(r"( *\d+:\d\d)  (.{9})  (\S+ *)  \S", line) for line in lines(SCRIPT)]
    assert all(told)
    assert {len(match[1]) for match in told} == {8}
    assert {match.start(3) for match in told} == {21}
    counts = [int(match[2].split("/")[0]) for match in told]
    assert counts == sorted(counts) and counts[-1] == 5


def test_a_decision_tells_its_number_score_gain_and_change():
    kept = next(line for line in lines(SCRIPT) if " keep " in line)
    assert "d.r1 #1" in kept and "1.7500*" in kept and "+0.2500" in kept and "DEPTH 4 → 6" in kept and "4/8" in kept


def test_a_verdict_tells_its_ground():
    said = next(line for line in lines(SCRIPT) if " adopt " in line)
    for word in ("+0.0200", "[+0.0100, +0.0300] at 90%", "4 pairs", "3 of 9"):
        assert word in said


def test_a_stand_in_and_missing_confinement_are_named():
    said = lines([("study", SCRIPT[0][1] | {"tier": "none"})])[0]
    assert "stand-in" in said and "not confined" in said


def test_what_a_model_wrote_moves_no_cursor_and_keeps_its_brackets():
    said = "\n".join(lines(SCRIPT))
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf") for c in said)
    assert "bad[bold]x[/bold]" in said


@given(st.sampled_from(SCRIPT), st.data())
def test_a_fact_that_is_missing_or_none_is_no_error(event, data):
    kind, facts = event
    known = data.draw(st.lists(st.sampled_from(sorted(facts)), unique=True))
    none = data.draw(st.lists(st.sampled_from(sorted(facts)), unique=True))
    assert len(lines([(kind, {name: facts[name] for name in known} | dict.fromkeys(none))])) == 1


def live(events, threads=1):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40)
    with watching(console) as report:
        workers = [threading.Thread(target=lambda: [report(k, dict(d)) for k, d in events]) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert not any(worker.is_alive() for worker in workers)
    return out.getvalue()


def test_the_live_view_shows_runs_decisions_and_the_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = live(SCRIPT[:11])
    for word in ("d.r1", "2.0000", "1.7500", "+0.2500", "1/1 100%", "4 of 8 trainings", "left", "keep", "DEPTH 4 → 6"):
        assert word in shown
    assert "\x1b[2J" not in shown and "\x1b]0;" not in shown


def test_the_live_view_takes_events_from_many_threads(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert "Noise floor" in live(SCRIPT * 10, threads=8)


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in live(SCRIPT)


def test_lines_from_many_threads_are_whole():
    out = io.StringIO()
    with watching(Console(file=out, width=80)) as report:
        each = [
            threading.Thread(target=lambda: [report("note", {"text": "said"}) for _ in range(50)]) for _ in range(8)
        ]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
    assert len(out.getvalue().splitlines()) == 400
    assert all(line.endswith("note        said") for line in out.getvalue().splitlines())


def tallied(events, every=10.0):
    tally = Tally(0.0)
    for at, (kind, data) in enumerate(events):
        tally.add(kind, data, at * every)
    return tally


def trainings(count, **study):
    begun = [("study", {"trainings": 10} | study), ("measuring", {"run": "n", "count": 10})]
    return begun + [("measured", {"run": "n", "index": i, "score": 2.0}) for i in range(count)]


def test_time_left_follows_the_pace_so_far():
    # Four trainings, one every ten seconds; six are left.
    assert tallied(trainings(4)).left(50.0) == pytest.approx(6 * 40 / 4)


def test_time_left_is_not_guessed_from_one_training():
    assert tallied(trainings(1)).left(30.0) is None


def test_trainings_before_a_resume_count_as_done_but_not_in_the_pace():
    tally = tallied(trainings(2, done=5))
    assert tally.done == 7
    assert tally.left(30.0) == pytest.approx(3 * 20 / 2)


def test_a_gain_is_positive_where_the_metric_got_better():
    events = [(k, d) for k, d in SCRIPT if k == "decided"]
    assert tallied(events).gain("d.r1") == pytest.approx(0.25)
    assert tallied([("study", {"direction": "maximize"}), *events]).gain("d.r1") == pytest.approx(-0.25)
    assert tallied(events).gain("other") is None


def test_a_new_part_begins_with_an_empty_table():
    assert tallied([*SCRIPT, ("stage", {"title": "next"})]).runs == {}

"""The outer loop is a graph over a subject: every step in its order, and none twice after a stop."""

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from outer.loop import ATTEMPTS, run_outer
from traces.errors import Stopped


class Diary:
    """A subject that writes down what it is asked for, and may stop or fail its checks."""

    def __init__(self, failing=0, stop_at=None):
        self.pages, self.failing, self.stop_at = [], failing, stop_at

    def note(self, *page):
        if page == self.stop_at:
            self.stop_at = None
            raise Stopped("stopped")
        self.pages.append(page)

    def digest(self, index):
        self.note("digest", index)

    def research(self, index, attempt):
        self.note("research", index, attempt)

    def check(self, index, attempt):
        self.note("check", index, attempt)
        return attempt >= self.failing

    def trial(self, index):
        self.note("trial", index)

    def compare(self, index):
        self.note("compare", index)

    def refuse(self, index):
        self.note("refuse", index)


def turn(index):
    return [("digest", index), ("research", index, 0), ("check", index, 0), ("trial", index), ("compare", index)]


@pytest.fixture
def checkpoints(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.sqlite")) as saver:
        yield saver


def test_a_turn_takes_its_steps_in_order(checkpoints):
    subject = Diary()
    run_outer(subject, "thread", 2, checkpoints)
    assert subject.pages == turn(1) + turn(2)


def test_no_turns_do_nothing(checkpoints):
    subject = Diary()
    run_outer(subject, "thread", 0, checkpoints)
    assert subject.pages == []


def test_a_candidate_that_fails_its_check_is_mended_at_most_three_times(checkpoints):
    subject = Diary(failing=ATTEMPTS)
    run_outer(subject, "thread", 1, checkpoints)
    tries = [page for attempt in range(ATTEMPTS) for page in (("research", 1, attempt), ("check", 1, attempt))]
    assert subject.pages == [("digest", 1), *tries, ("refuse", 1)]


def test_a_mended_candidate_is_tried(checkpoints):
    subject = Diary(failing=ATTEMPTS - 1)
    run_outer(subject, "thread", 1, checkpoints)
    assert subject.pages[-2:] == [("trial", 1), ("compare", 1)]


@pytest.mark.parametrize("stop_at", turn(1) + turn(2), ids=lambda page: "-".join(map(str, page)))
def test_a_stop_costs_only_the_step_that_it_fell_into(checkpoints, stop_at):
    subject = Diary(stop_at=stop_at)
    with pytest.raises(Stopped):
        run_outer(subject, "thread", 2, checkpoints)
    run_outer(subject, "thread", 2, checkpoints)
    assert subject.pages == turn(1) + turn(2)


def test_a_finished_loop_stays_finished(checkpoints):
    subject = Diary()
    run_outer(subject, "thread", 1, checkpoints)
    run_outer(subject, "thread", 1, checkpoints)
    assert subject.pages == turn(1)

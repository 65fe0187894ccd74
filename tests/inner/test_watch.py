"""Whatever a process says, prints or does, its watcher goes on watching."""

import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from inner.sandbox import spawn, tier
from inner.watch import Over, Talker, one_line
from traces.errors import Stopped

# What each program begins with: the other end of the conversation.
HEAD = """
import json, os, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
def say(body):
    channel.sendall(len(body).to_bytes(4, "little") + body)
"""


@contextmanager
def talking(code, gib=1.0, where=None, stop=None, **options):
    ours, theirs = socket.socketpair()
    with theirs:
        confined = spawn(
            ["-P", "-s", "-S", "-c", HEAD + code, str(theirs.fileno())],
            tier=where or tier(),
            descriptors=[theirs.fileno()],
            **options,
        )
    talker = Talker(confined, ours, gib, stop or threading.Event())
    try:
        yield talker
    finally:
        talker.kill()


def over(code, seconds=60.0, check=None, **options):
    """How a program ends, if it says nothing that can be heard."""
    with talking(code, **options) as talker, pytest.raises(Over) as caught:
        while True:
            talker.listen(time.monotonic() + seconds, "was late", check)
    assert "\n" not in caught.value.detail
    return caught.value


def test_messages_are_heard_however_they_are_cut():
    code = """
whole = b"".join(len(body).to_bytes(4, "little") + body for body in (b'{"say": "one"}', b'{"say": "two", "more": [1]}'))
for place in range(len(whole)):
    channel.sendall(whole[place:place + 1])
    time.sleep(0.001)
say(b'{"say": "three"}')
time.sleep(600)
"""
    with talking(code) as talker:
        deadline = time.monotonic() + 60
        heard = [talker.listen(deadline, "late") for _ in range(3)]
    assert heard == [{"say": "one"}, {"say": "two", "more": [1]}, {"say": "three"}]


def test_a_message_of_a_process_that_has_ended_is_still_heard():
    with talking('say(b\'{"say": "bye"}\')') as talker:
        while talker.confined.exit_status() is None:
            time.sleep(0.01)
        assert talker.listen(time.monotonic() + 60, "late") == {"say": "bye"}
        with pytest.raises(Over):
            talker.listen(time.monotonic() + 60, "late")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("b'nonsense'", "broke the protocol"),
        ("b'[1]'", "not an object"),
        ("b'\\xff\\xfe'", "broke the protocol"),
        ("b'[' * 60000", "nested too deeply"),
        ("b'{\"a\":' * 10000", "nested too deeply"),
    ],
)
def test_a_message_that_is_none_ends_it(body, words):
    end = over(f"say({body})\ntime.sleep(600)")
    assert end.status == "crash"
    assert words in end.detail


def test_a_message_that_is_too_long_is_not_waited_for():
    end = over("channel.sendall((2**31).to_bytes(4, 'little'))\ntime.sleep(600)")
    assert (end.status, end.detail) == ("crash", f"the worker broke the protocol: a message of {2**31} bytes")


@pytest.mark.parametrize(
    "code",
    [
        "channel.sendall(b'\\x05')\ntime.sleep(600)",
        "channel.sendall((1000).to_bytes(4, 'little') + b'{')\ntime.sleep(600)",
        "channel.sendall((60000).to_bytes(4, 'little'))\nwhile True:\n    channel.sendall(b' '); time.sleep(0.05)",
        "while True: print('x' * 10**6)",
        "while True: time.sleep(600)",
    ],
    ids=["half a length", "half a message", "drop by drop", "output without end", "silence"],
)
def test_the_deadline_holds_whatever_is_said_and_printed(code):
    began = time.monotonic()
    end = over(code, seconds=0.5)
    assert (end.status, end.detail) == ("timeout", "was late")
    assert time.monotonic() - began < 20


def test_the_limits_hold_under_a_flood_of_messages():
    looks = []
    with talking('body = b\'{"say": "point"}\'\nwhile True: say(body)') as talker:
        deadline = time.monotonic() + 0.5
        with pytest.raises(Over) as caught:
            while True:
                talker.listen(deadline, "was late", looks.append)
    assert caught.value.status == "timeout"
    assert len(looks) > 3
    assert looks == sorted(looks)


def test_a_check_may_end_it():
    def check(seconds):
        if seconds > 0.2:
            raise Over("timeout", f"{seconds:.2f} cpu s")

    end = over("while True: pass", check=check)
    assert end.status == "timeout"
    assert 0.2 < float(end.detail.split()[0]) < 1.0


def test_stopping_ends_it_at_once():
    stop = threading.Event()
    with talking("while True: say(b'{}')", stop=stop) as talker:
        assert talker.listen(time.monotonic() + 60, "late") == {}
        stop.set()
        began = time.monotonic()
        with pytest.raises(Stopped):
            while True:
                talker.listen(began + 60, "late")
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("where", ["bubblewrap", "none"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('this is why')", "ValueError: this is why"),
        ("os._exit(0)", "exit status 0"),
        ("print('the last', flush=True); print(' ', flush=True); os._exit(0)", "exit status 0: the last"),
        ("raise SystemExit(7)", "exit status 7"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_the_end_of_a_process_is_told(where, code, words):
    end = over(code, where=where)
    assert (end.status, end.detail) == ("crash", words)


def test_who_hangs_up_and_lives_on_is_ended():
    began = time.monotonic()
    end = over("channel.close()\nwhile True: time.sleep(600)")
    assert (end.status, end.detail) == ("crash", "hung up")
    assert time.monotonic() - began < 20


def test_a_child_that_holds_the_channel_open_does_not_hide_the_end():
    end = over("if os.fork() == 0:\n    while True: time.sleep(600)\nos._exit(3)", where="none", seconds=30)
    assert (end.status, end.detail) == ("crash", "exit status 3")


def test_memory_over_the_limit_ends_it():
    end = over(
        "held = bytearray(400 * 2**20)\nfor i in range(0, len(held), 4096): held[i] = 1\ntime.sleep(600)", gib=0.25
    )
    assert end.status == "crash"
    assert "GiB of memory, the limit is budget.memory_gib = 0.25" in end.detail


def test_memory_that_is_shared_is_held_against_it_once():
    code = """
held = b"x" * (150 * 2**20)
for _ in range(4):
    if os.fork() == 0:
        time.sleep(600)
time.sleep(1.0)
say(b"{}")
time.sleep(600)
"""
    with talking(code, gib=0.3) as talker:
        assert talker.listen(time.monotonic() + 60, "late") == {}
        assert talker.confined.usage()[1] > 0.5 * 2**30
        assert talker.peak_memory < 0.3 * 2**30


def test_the_peak_of_memory_is_kept():
    code = "held = b'x' * (200 * 2**20)\nsay(b'{}')\nchannel.recv(1)\ndel held\nsay(b'{}')\nchannel.recv(1)"
    with talking(code) as talker:
        deadline = time.monotonic() + 60
        talker.listen(deadline, "late")
        while talker.peak_memory < 200 * 2**20:
            talker.turn(deadline, "late")
        talker._channel.send(b"x")
        talker.listen(deadline, "late")
        time.sleep(0.05)
        talker.turn(deadline, "late")
        assert 200 * 2**20 < talker.peak_memory < 400 * 2**20


def test_only_the_tail_of_the_output_is_kept():
    with talking(
        "print('first'); print('x' * 10**6); print('last', flush=True)\nsay(b'{}')\ntime.sleep(600)"
    ) as talker:
        talker.listen(time.monotonic() + 60, "late")
        printed = talker.kill()
    assert printed.endswith("x\nlast\n")
    assert len(printed) == 16 * 2**10


def test_descriptors_that_are_sent_along_are_not_kept():
    before = len(os.listdir("/proc/self/fd"))
    code = """
for _ in range(50):
    socket.send_fds(channel, [(2).to_bytes(4, "little")], [0, 1, 2] * 20)
    channel.sendall(b"{}")
time.sleep(600)
"""
    with talking(code) as talker:
        inside = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            assert talker.listen(time.monotonic() + 60, "late") == {}
        assert len(os.listdir("/proc/self/fd")) <= inside
    assert len(os.listdir("/proc/self/fd")) <= before


def test_asking_who_is_gone_is_the_end_of_it():
    with talking("os._exit(4)") as talker:
        while talker.confined.exit_status() is None:
            time.sleep(0.01)
        with pytest.raises(Over, match="exit status 4") as caught:
            talker.ask({"say": "x" * 10**6})
        assert caught.value.status == "crash"


def test_another_word_than_the_one_expected_is_the_end_of_it():
    with talking("say(json.dumps({'say': 'x' * 500}).encode())\ntime.sleep(600)") as talker:
        with pytest.raises(Over, match=r"the worker said 'xxx.* instead of 'ready'") as caught:
            talker.expect("ready", time.monotonic() + 60, "late")
    assert len(caught.value.detail) < 200


def test_one_line_is_one_line_and_does_nothing_to_a_terminal():
    assert one_line("  a\nb\tc\x1b[31m\x07\u2028d ") == "a b c [31m  d"
    assert one_line("x" * 1000) == "x" * 300
    assert one_line("x" * 1000, 500) == "x" * 500
    assert one_line("größer ≤ 3") == "größer ≤ 3"

"""Threads may parse at once."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import inner.edit

SURFACE = (Path(__file__).parents[2] / "benchmarks" / "gpt" / "train.py").read_text()


class Knot:
    """Collected by the garbage collector only, and slowly: what lets another thread in while one is parsing."""

    def __init__(self):
        self.self = self

    def __del__(self):
        sum(range(50))


def test_threads_may_parse_at_once():
    failed = []

    def work():
        for turn in range(30):
            Knot()
            try:
                inner.edit.read_constants(f"{SURFACE}\n# {turn}")
            except SystemError as error:
                failed.append(error)

    before = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])
    assert failed == []

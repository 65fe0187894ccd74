"""What runs inside a strategy's sandbox: the module, its history, and no way out but one socket.

Standard library and `inner.history` only. Started as a program by `inner.host`, which holds the other end. What a
strategy prints goes nowhere, and it may hold `MEMORY` bytes.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
import traceback
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TextIO

if __name__ == "__main__":
    # The words alone, without what else lies around their folder.
    _package = ModuleType("inner")
    _package.__path__ = [str(Path(__file__).resolve().parent)]
    sys.modules["inner"] = _package

from inner import history as words

NAME = "strategy"
MEMORY = 2**30


class _Watch:
    """Notes which functions of the strategy's module run."""

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self.seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == self._filename:
            self.seen.add(frame.f_code)

    def names(self) -> list[str]:
        functions = (code for code in self.seen if code.co_flags & CO_OPTIMIZED)  # not the body of a class
        return sorted({code.co_qualname for code in functions if not code.co_name.startswith("<")})


class Guest:
    """Answers the host's calls, one at a time."""

    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        self._reader, self._writer = reader, writer
        self._experiments: list[words.Experiment] = []
        self._strategy: Any = None
        self._rng = random.Random()
        self._filename = f"<{NAME}>"
        self._asking = 0.0

    def serve(self) -> None:
        """Answers until the host closes."""
        while line := self._reader.readline():
            order = json.loads(line)
            watch = _Watch(self._filename)
            self._asking, began = 0.0, time.perf_counter()
            try:
                sys.setprofile(watch)
                try:
                    answer = self._answer(order)
                finally:
                    sys.setprofile(None)
                json.dumps(answer)  # what cannot be sent is the strategy's fault, and is said so
                reply: dict[str, Any] = {"answer": answer}
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                lines = [frame.lineno for frame in frames if frame.filename == self._filename]
                where = f" (line {lines[-1]} of the strategy)" if lines else ""
                reply = {"error": f"{type(error).__name__}: {error}{where}"}
            reply["seconds"] = time.perf_counter() - began - self._asking
            self._say(reply | {"functions": watch.names()})

    def _answer(self, order: dict[str, Any]) -> Any:
        step = order["step"]
        self._rng.seed(order["seed"])
        random.seed(order["seed"])  # for a strategy that draws from the module
        if step == "start":
            return self._start(order["source"], words.task_view_from(order["task"]))
        del self._experiments[order["from"] :]
        self._experiments += [words.experiment_from(e) for e in order["experiments"]]
        history = words.History(tuple(self._experiments), order["noise"], order["direction"])
        if step == "propose":
            proposal = self._strategy.propose(history, self._ask)
            if not isinstance(proposal, words.Proposal):
                raise TypeError(f"propose must return a Proposal, got {type(proposal).__name__}")
            return words.to_json(proposal)
        if step == "accept":
            kept = self._strategy.accept(history, words.experiment_from(order["candidate"]))
            if not isinstance(kept, bool):
                raise TypeError(f"accept must return a bool, got {type(kept).__name__}")
            return kept
        if step == "observe":
            if hasattr(self._strategy, "observe"):
                self._strategy.observe(words.experiment_from(order["candidate"]))
            return None
        if step == "prune":
            points = tuple(words.CurvePoint(*point) for point in order["curve"])
            return bool(self._strategy.prune(history, points))
        raise ValueError(f"unknown step {step}")

    def _start(self, source: str, task: words.TaskView) -> dict[str, Any]:
        module = ModuleType(NAME)
        sys.modules[NAME] = module
        exec(compile(source, self._filename, "exec"), module.__dict__)  # noqa: S102  (this process is its sandbox)
        self._strategy = module.__dict__["Strategy"](task, self._rng)
        return {"prunes": hasattr(self._strategy, "prune"), "observes": hasattr(self._strategy, "observe")}

    def _ask(self, request: words.Request) -> tuple[words.Proposal, ...]:
        if not isinstance(request, words.Request):
            raise TypeError(f"ask takes a Request, got {type(request).__name__}")
        began = time.perf_counter()
        self._say({"ask": words.to_json(request)})
        reply = json.loads(self._reader.readline())
        self._asking += time.perf_counter() - began
        return tuple(words.proposal_from(p) for p in reply["proposals"])

    def _say(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message) + "\n")
        self._writer.flush()


def main() -> None:
    """Serves the host whose socket's descriptor is the first argument."""
    descriptor = int(sys.argv[1])
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with open(descriptor, encoding="utf-8", closefd=False) as reader, open(descriptor, "w", encoding="utf-8") as writer:
        Guest(reader, writer).serve()


if __name__ == "__main__":
    main()

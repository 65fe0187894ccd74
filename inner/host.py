"""A strategy in its own confined process: no network, no files, no keys, no traces, no metric.

The host holds the other end of the strategy's only socket. It gives each call a seed and a time limit, answers its
questions to the language model, and notes which functions of the module ran. Calls are reproducible: the generator is
seeded anew before each one, so a strategy that was restarted and shown the same experiments decides the same.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from inner.history import (
    CurvePoint,
    Experiment,
    History,
    Proposal,
    Request,
    TaskView,
    proposal_from,
    request_from,
    to_json,
)
from inner.sandbox import Tier, spawn
from inner.watch import one_line
from traces.errors import StrategyError, TrialError

T = TypeVar("T")
Answerer = Callable[[Request], tuple[Proposal, ...]]

CALL_SECONDS = 10.0
"""How long one call may take, the language model's time not counted."""

MOST_CANDIDATES = 32
"""How many proposals one question may ask for."""

_LARGEST = 4 * 2**20


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call of a strategy: its answer, the functions of the module that ran, and its own seconds."""

    answer: T
    functions: tuple[str, ...]
    seconds: float


class Host:
    """Runs one strategy module.

    A call that fails, or breaks the contract, raises `StrategyError` with one line; the next call starts the module
    afresh and shows it the experiments again.

    Attributes:
        started: the loading of the module, as a call.
        prunes: whether the strategy has `prune`.
        observes: whether it has `observe`.
    """

    def __init__(
        self, source: str, task: TaskView, seed: int | str, tier: Tier, call_seconds: float = CALL_SECONDS
    ) -> None:
        """Starts the process and the module in it.

        Raises:
            StrategyError: the module does not load.
        """
        self._source, self._task, self._seed, self._tier = source, task, seed, tier
        self._call_seconds = call_seconds
        self._observed: list[tuple[int, Experiment]] = []
        self._start()

    def propose(self, history: History, ask: Answerer) -> Call[Proposal]:
        """What to try next. Raises `StrategyError`, and whatever `ask` raises."""
        call = self._call("propose", history, ask=ask)
        with _contract("propose gave something that is no proposal"):
            return Call(proposal_from(call.answer), call.functions, call.seconds)

    def accept(self, history: History, candidate: Experiment) -> Call[bool]:
        """Whether to keep a scored experiment. Raises `StrategyError`."""
        call = self._call("accept", history, candidate=to_json(candidate))
        if not isinstance(call.answer, bool):
            raise StrategyError(f"accept must answer true or false, got {call.answer!r:.80}")
        return Call(call.answer, call.functions, call.seconds)

    def observe(self, history: History, experiment: Experiment) -> Call[None]:
        """Tells of a decided experiment, which `history` holds already. Raises `StrategyError`."""
        if not self.observes:
            return Call(None, (), 0.0)
        call = self._call("observe", history, candidate=to_json(experiment))
        # Only now: what it failed to observe, it would fail to observe again after every restart.
        self._observed.append((len(history), experiment))
        return Call(None, call.functions, call.seconds)

    def prune(self, history: History, curve: tuple[CurvePoint, ...]) -> Call[bool]:
        """Whether to stop the experiment that runs. Raises `StrategyError`."""
        points = [(point.step, point.progress, point.loss) for point in curve]
        call = self._call("prune", history, curve=points)
        return Call(call.answer is True, call.functions, call.seconds)

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        self._confined.kill()
        self._channel.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._confined = spawn(
                    ["-P", "-s", "-S", str(_GUEST), str(theirs.fileno())],
                    tier=self._tier,
                    readonly=_CODE,
                    descriptors=[theirs.fileno()],
                    packages=False,
                    forks=False,
                )
        except OSError as error:
            ours.close()
            raise TrialError(f"a strategy's process did not start: {error}") from None
        self._channel, self._buffer, self._sent = ours, b"", []  # type: tuple[socket.socket, bytes, list[Experiment]]
        order = {"step": "start", "seed": f"{self._seed}:start", "source": self._source, "task": to_json(self._task)}
        call = self._exchange(order, None)
        with _contract("start broke the protocol", self.close):
            self.prunes, self.observes = call.answer["prunes"] is True, call.answer["observes"] is True
        self.started: Call[None] = Call(None, call.functions, call.seconds)

    def _restart(self, history: History) -> None:
        """Starts the module afresh and shows it what it has observed, each with the history of its time."""
        self.close()
        self._start()
        for length, experiment in self._observed:
            then = replace(history, experiments=history.experiments[:length])
            self._order("observe", then, length, None, {"candidate": to_json(experiment)})

    def _call(self, step: str, history: History, ask: Answerer | None = None, **arguments: Any) -> Call[Any]:
        if self._channel.fileno() < 0:
            self._restart(history)
        return self._order(step, history, len(history), ask, arguments)

    def _order(
        self, step: str, history: History, length: int, ask: Answerer | None, arguments: dict[str, Any]
    ) -> Call[Any]:
        known = 0
        for mine, theirs in zip(self._sent, history.experiments, strict=False):
            if mine is not theirs and mine != theirs:
                break
            known += 1
        order = {
            "step": step,
            "seed": f"{self._seed}:{length}:{step}",
            "from": known,
            "experiments": [to_json(e) for e in history.experiments[known:]],
            "noise": history.noise,
            "direction": history.direction,
        }
        self._sent = list(history.experiments)
        return self._exchange(order | arguments, ask)

    def _exchange(self, order: dict[str, Any], ask: Answerer | None) -> Call[Any]:
        """One call; closes the process if it fails or breaks the contract, so that the next call starts afresh."""
        step = order["step"]
        try:
            self._send(order, step)
            left = self._call_seconds
            while True:
                began = time.monotonic()
                reply = self._receive(left, step)
                left -= time.monotonic() - began
                if "ask" not in reply:
                    break
                if ask is None:
                    raise StrategyError(f"{step} may not ask the language model")
                with _contract(f"{step} asked for something that is no request"):
                    request = request_from(reply["ask"])
                if not 1 <= request.candidates <= MOST_CANDIDATES:
                    count = f"{request.candidates!r:.20}"
                    raise StrategyError(f"{step} asked for {count} candidates: ask for 1 to {MOST_CANDIDATES}")
                self._send({"proposals": [to_json(proposal) for proposal in ask(request)]}, step)
            if "error" in reply:
                raise StrategyError(f"{step} failed: {one_line(str(reply['error']), 500)}")
            with _contract(f"{step} broke the protocol"):
                functions = tuple(str(name) for name in reply["functions"])
                return Call(reply["answer"], functions, float(reply["seconds"]))
        except BaseException:
            # An unanswered question would be taken for the answer to the next call.
            self.close()
            raise

    def _send(self, message: dict[str, Any], step: str) -> None:
        self._channel.settimeout(self._call_seconds)
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise StrategyError(f"{step} found the strategy's process gone, or deaf") from None

    def _receive(self, seconds: float, step: str) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._channel], [], [], left)[0]:
                raise StrategyError(f"{step} took more than {self._call_seconds:g} s")
            with _contract(f"{step} ended the strategy's process"):
                part = self._channel.recv(2**16)
            if not part:
                raise StrategyError(f"{step} ended the strategy's process")
            self._buffer += part
            if len(self._buffer) > _LARGEST:
                raise StrategyError(f"{step} answered with more than {_LARGEST // 2**20} MiB")
        line, _, self._buffer = self._buffer.partition(b"\n")
        with _contract(f"{step} broke the protocol"):
            reply = json.loads(line)
            if not isinstance(reply, dict):
                raise ValueError("not an object")
            # Half of a surrogate pair, which JSON can name and no file can hold.
            json.dumps(reply, ensure_ascii=False).encode()
        return reply


@contextmanager
def _contract(broken: str, close: Callable[[], None] | None = None) -> Iterator[None]:
    """Names what a strategy broke where what it sent cannot be read."""
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        if close is not None:
            close()
        raise StrategyError(f"{broken}: {type(error).__name__}: {one_line(str(error))}") from None


_GUEST = Path(__file__).with_name("guest.py").resolve()
_CODE = tuple(Path(__file__).with_name(name).resolve() for name in ("__init__.py", "history.py", "guest.py"))

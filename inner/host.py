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
from collections.abc import Callable
from dataclasses import dataclass
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
from traces.errors import StrategyError

T = TypeVar("T")
Answerer = Callable[[Request], tuple[Proposal, ...]]

CALL_SECONDS = 10.0
"""How long one call may take, the language model's time not counted."""

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
        self._observed: list[Experiment] = []
        self._start()

    def propose(self, history: History, ask: Answerer) -> Call[Proposal]:
        """What to try next. Raises `StrategyError`, and whatever `ask` raises."""
        call = self._call("propose", history, ask=ask)
        try:
            return Call(proposal_from(call.answer), call.functions, call.seconds)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StrategyError(f"propose gave something that is no proposal: {error}") from None

    def accept(self, history: History, candidate: Experiment) -> Call[bool]:
        """Whether to keep a scored experiment. Raises `StrategyError`."""
        call = self._call("accept", history, candidate=to_json(candidate))
        if not isinstance(call.answer, bool):
            raise StrategyError(f"accept must answer true or false, got {call.answer!r}")
        return Call(call.answer, call.functions, call.seconds)

    def observe(self, history: History, experiment: Experiment) -> Call[None]:
        """Tells of a decided experiment, which `history` holds already. Raises `StrategyError`."""
        self._observed.append(experiment)
        if not self.observes:
            return Call(None, (), 0.0)
        call = self._call("observe", history, candidate=to_json(experiment))
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
        with theirs:
            self._confined = spawn(
                ["-I", "-S", str(_GUEST), str(theirs.fileno())],
                tier=self._tier,
                readonly=_CODE,
                descriptors=[theirs.fileno()],
            )
        self._channel, self._buffer, self._sent = ours, b"", []  # type: tuple[socket.socket, bytes, list[Experiment]]
        call = self._exchange({"step": "start", "source": self._source, "task": to_json(self._task)}, None)
        self.prunes, self.observes = call.answer["prunes"] is True, call.answer["observes"] is True
        self.started: Call[None] = Call(None, call.functions, call.seconds)

    def _restart(self) -> None:
        self.close()
        self._start()
        observed, self._observed = self._observed, []
        for count, experiment in enumerate(observed, 1):
            self.observe(History(tuple(observed[:count])), experiment)

    def _call(self, step: str, history: History, ask: Answerer | None = None, **arguments: Any) -> Call[Any]:
        if self._channel.fileno() < 0:
            self._restart()
        known = 0
        for mine, theirs in zip(self._sent, history.experiments, strict=False):
            if mine is not theirs and mine != theirs:
                break
            known += 1
        order = {
            "step": step,
            "seed": f"{self._seed}:{len(history)}:{step}",
            "from": known,
            "experiments": [to_json(e) for e in history.experiments[known:]],
            "noise": history.noise,
            "direction": history.direction,
        }
        self._sent = list(history.experiments)
        return self._exchange(order | arguments, ask)

    def _exchange(self, order: dict[str, Any], ask: Answerer | None) -> Call[Any]:
        """One call; closes the process if it breaks the contract, so that the next call starts afresh."""
        step = order["step"]
        try:
            self._send(order)
            left = self._call_seconds
            while True:
                began = time.monotonic()
                reply = self._receive(left, step)
                left -= time.monotonic() - began
                if "ask" not in reply:
                    break
                if ask is None:
                    raise StrategyError(f"{step} may not ask the language model")
                self._send({"proposals": [to_json(proposal) for proposal in ask(request_from(reply["ask"]))]})
            functions = tuple(str(name) for name in reply.get("functions", ()))
            if "error" in reply:
                raise StrategyError(f"{step} failed: {str(reply['error'])[:500]}")
            return Call(reply["answer"], functions, float(reply["seconds"]))
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.close()
            raise StrategyError(f"{step} broke the protocol: {type(error).__name__}: {error}") from None
        except BaseException:
            # An unanswered question would be taken for the answer to the next call.
            self.close()
            raise

    def _send(self, message: dict[str, Any]) -> None:
        self._channel.settimeout(self._call_seconds)
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self, seconds: float, step: str) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._channel], [], [], left)[0]:
                raise StrategyError(f"{step} took more than {self._call_seconds:g} s")
            part = self._channel.recv(2**16)
            if not part:
                raise StrategyError(f"{step} ended the strategy's process")
            self._buffer += part
            if len(self._buffer) > _LARGEST:
                raise StrategyError(f"{step} answered with more than {_LARGEST // 2**20} MiB")
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError("not an object")
        return reply


_GUEST = Path(__file__).with_name("guest.py").resolve()
_CODE = tuple(Path(__file__).with_name(name).resolve() for name in ("__init__.py", "history.py", "guest.py"))

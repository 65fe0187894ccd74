"""What runs inside the sandbox: imports the surface, trains it, answers the scorer.

One worker runs one experiment. It is started before there is anything to run, and waits with torch imported. Everything
that it says is a claim: the clock, the validation tokens and the score are the parent's. Only torch and the standard
library are imported here, and the words of the conversation need no torch, so that the parent speaks with the same.

The conversation, over one socket (worker's words on the left):

    warm ->
                <- build: the surface, what it is to build
    ready ->
                <- data: a sealed read-only descriptor of the training tokens. The clock starts
    point ->       (many) step, progress, loss
    trained ->
                <- score: descriptors of the tokens to be judged and of the room for the logits
    logits ->      (once a block)
                <- next / end
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

REPORTS_A_SECOND = 10
LENGTH = 4
"""Bytes before a message that say how long it is."""


def send(channel: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Sends one message, with file descriptors if any."""
    body = json.dumps(message).encode()
    socket.send_fds(channel, [len(body).to_bytes(LENGTH, "little")], list(descriptors))
    channel.sendall(body)


def decode(body: bytes) -> dict[str, Any]:
    """The message that was sent as `body`. Raises `ValueError` if it is none."""
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return message


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Waits for one message and what comes with it. Raises `EOFError` if the other side has closed."""
    head, descriptors, _, _ = socket.recv_fds(channel, LENGTH, 2)
    size = int.from_bytes(head + _exactly(channel, LENGTH - len(head)), "little")
    return decode(_exactly(channel, size)), descriptors


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 2**20))
        if not part:
            raise EOFError("the other side has closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Clock:
    """What the surface sees of its budget. The parent's clock is the one that counts."""

    def __init__(self, channel: socket.socket, seconds: float, kind: str) -> None:
        self._channel, self._seconds = channel, seconds
        self._now = time.process_time if kind == "cpu" else time.monotonic
        self._start = self._now()
        self._last = -1.0
        self.steps = self.tokens = 0

    def progress(self) -> float:
        """The share of the budget that is spent: 0 at the start, 1 at the end."""
        return (self._now() - self._start) / self._seconds

    def report(self, step: int, loss: float, tokens: int) -> None:
        """Records a point of the training curve: `loss` in nats a token, `tokens` trained on so far."""
        self.steps, self.tokens = int(step), int(tokens)
        now = time.monotonic()
        if now - self._last >= 1 / REPORTS_A_SECOND:
            self._last = now
            point = {"step": self.steps, "progress": self.progress(), "loss": float(loss)}
            send(self._channel, {"say": "point", **point})


def main() -> None:
    """Runs one experiment; the socket's descriptor is the first argument, the count of threads the second."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    if sys.argv[3] == "cpu":
        os.nice(5)  # on a full machine, who watches the clock does not wait for those who train
    import torch

    torch.set_num_threads(int(sys.argv[2]))
    if sys.argv[3] == "cuda":
        torch.zeros(1, device="cuda")  # makes the context now, outside every clock
    send(channel, {"say": "warm", "device": torch.cuda.get_device_name() if sys.argv[3] == "cuda" else "cpu"})

    order, _ = _receive(channel)
    surface = _import(order["name"], order["surface"])
    spec = SimpleNamespace(**order["spec"])
    state = surface.build(spec)
    send(channel, {"say": "ready"})

    order, (descriptor,) = _receive(channel)
    # A private mapping: writable in memory, as torch wants it, and never written back.
    room = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    clock = Clock(channel, order["seconds"], order["clock"])
    surface.train(state, torch.frombuffer(room, dtype=torch.uint16), clock)
    if spec.device == "cuda":
        torch.cuda.synchronize()
    memory = torch.cuda.max_memory_allocated() if spec.device == "cuda" else None
    send(channel, {"say": "trained", "steps": clock.steps, "tokens": clock.tokens, "device_memory": memory})

    order, (asked, answer) = _receive(channel)
    rows, context, vocabulary = order["rows"], order["context"], order["vocab_size"]
    questions = torch.frombuffer(mmap.mmap(asked, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE), dtype=torch.int32)
    answers = torch.frombuffer(mmap.mmap(answer, 0), dtype=torch.float32)[: rows * context * vocabulary]
    answers = answers.view(rows, context, vocabulary)
    while order["say"] != "end":
        block = questions.view(rows, context).to(spec.device, torch.int64)
        logits = surface.logits(state, block)
        if tuple(logits.shape) != tuple(answers.shape):
            raise ValueError(f"logits must have shape {tuple(answers.shape)}, got {tuple(logits.shape)}")
        answers.copy_(logits.detach())
        send(channel, {"say": "logits"})
        order, _ = _receive(channel)


def _import(name: str, text: str) -> Any:
    """The surface as a module; written to a file first, since compilers want its source."""
    import importlib.util

    path = os.path.join(os.getcwd(), name)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location("surface", path)  # never the name of a module that there is
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

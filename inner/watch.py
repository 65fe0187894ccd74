"""A process in its sandbox, watched: what it says and prints, how long it takes, how much memory it holds.

Nothing that the process does may hold up the watcher, which is why it never waits for one whole message, reads no more
output than it keeps, and looks at the limits however much there is to read.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from inner.sandbox import Confined
from inner.worker import LENGTH, decode, send
from traces.errors import Stopped

Check = Callable[[float], None]
"""Called with the processor seconds that were used so far; raises `Over` to end the experiment."""

TICK = 0.02
"""Seconds between two looks at the limits."""

LOG_TAIL = 16 * 2**10
_LONGEST = 2**16  # bytes of a message: points and single words
_SEND_SECONDS = 30.0
_EXIT_SECONDS = 2.0
_WEIGHING_SECONDS = 0.5


class Over(Exception):
    """The experiment is over without a score."""

    def __init__(self, status: Literal["crash", "timeout", "invalid", "pruned"], detail: str) -> None:
        self.status = status
        self.detail = one_line(detail)


def one_line(text: str, length: int = 300) -> str:
    """What somebody else's program said, as one line of a sensible length that does nothing to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text.strip()[:length])


class Watched:
    """A process in its sandbox and what it has printed.

    Attributes:
        peak_memory: bytes, the most that was seen.
    """

    def __init__(self, confined: Confined, memory_gib: float, stop: threading.Event, tail: int = LOG_TAIL) -> None:
        """Watches `confined`, of whose output `tail` bytes are kept; `stop` ends it with `Stopped`."""
        self.confined = confined
        self.peak_memory = 0
        self._memory_gib, self._stop, self._tail = memory_gib, stop, tail
        self._output = confined.process.stdout
        assert self._output is not None
        os.set_blocking(self._output.fileno(), False)
        self._log = bytearray()
        self._looked = self._weighed = 0.0

    @property
    def printed(self) -> str:
        """The tail of what the process has printed."""
        return self._log.decode("utf-8", "replace")

    def turn(
        self, deadline: float, late: str, check: Check | None = None, channel: socket.socket | None = None
    ) -> bool:
        """Waits a tick at most, reads what was printed, and holds the process to its limits.

        Args:
            deadline: of `time.monotonic()`.
            late: what the experiment failed to do, if it passes.
            check: called at every tick.
            channel: where to listen as well.

        Returns:
            Whether the channel has something to read.

        Raises:
            Over: a limit was passed.
            Stopped: the user asked to stop.
        """
        if self._stop.is_set():
            raise Stopped("stopped")
        ready, _, _ = select.select([file for file in (channel, self._output) if file is not None], [], [], TICK)
        if self._output in ready:
            self._drain()
        now = time.monotonic()
        if now - self._looked >= TICK:
            self._looked = now
            seconds, memory = self.confined.usage()
            if memory > self._memory_gib * 2**30:
                memory = self._weigh(now)
            self.peak_memory = max(self.peak_memory, memory)
            if now > deadline:
                raise Over("timeout", late)
            if check is not None:
                check(seconds)
        return channel is not None and channel in ready

    def _weigh(self, now: float) -> int:
        """The memory of processes that seem to hold too much, 0 if that was looked at just now."""
        if now < self._weighed + _WEIGHING_SECONDS:
            return 0
        self._weighed, memory = now, self.confined.footprint()
        if memory > self._memory_gib * 2**30:
            self.peak_memory = max(self.peak_memory, memory)
            used = f"used {memory / 2**30:.2f} GiB of memory"
            raise Over("crash", f"{used}, the limit is budget.memory_gib = {self._memory_gib:g}")
        return memory

    def last_words(self) -> str:
        """How the process ended and the last line that it printed; only that line if it is Python's own."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while (status := self.confined.exit_status()) is None and time.monotonic() < deadline:
            time.sleep(TICK)
        self._drain()
        lines = [line for line in self.printed.splitlines() if line.strip()]
        if status == "exit status 1" and lines:
            return lines[-1]
        return ": ".join([status or "hung up", *lines[-1:]])

    def kill(self) -> str:
        """Ends the process and all that it started; gives the tail of what it printed."""
        self._drain()
        self._output = None
        self.confined.kill()
        return self.printed[-LOG_TAIL:]

    def _drain(self) -> None:
        if self._output is None:
            return
        try:
            # Bounded: a process that prints without end must not hold up the clock.
            for _ in range(64):
                part = os.read(self._output.fileno(), 2**16)
                if not part:
                    self._output = None
                    return
                self._log += part
                del self._log[: -self._tail]
        except BlockingIOError:
            return


class Talker(Watched):
    """A process that talks over a socket, in the words of `inner.worker`."""

    def __init__(self, confined: Confined, channel: socket.socket, memory_gib: float, stop: threading.Event) -> None:
        """Watches `confined`, whose other end of the conversation is `channel`."""
        super().__init__(confined, memory_gib, stop)
        self._channel = channel
        self._channel.settimeout(_SEND_SECONDS)
        self._heard = bytearray()

    def ask(self, message: dict[str, Any], *descriptors: int) -> None:
        """Sends a message. Raises `Over` if the process is gone, or does not listen."""
        try:
            send(self._channel, message, descriptors)
        except OSError:
            raise Over("crash", self.last_words()) from None

    def listen(self, deadline: float, late: str, check: Check | None = None) -> dict[str, Any]:
        """The next message; arguments and errors as of `turn`. What the process sends along with it is dropped."""
        while True:
            if (message := self._next()) is not None:
                return message
            ended = self.confined.exit_status() is not None
            if self.turn(deadline, late, check, self._channel):
                try:
                    part = self._channel.recv(_LONGEST)
                except OSError:
                    part = b""
                if not part:
                    raise Over("crash", self.last_words())
                self._heard += part
            elif ended:
                # Nothing more will come, though a child of its own may hold the channel open.
                raise Over("crash", self.last_words())

    def expect(self, word: str, deadline: float, late: str) -> dict[str, Any]:
        """The next message, which must be `word`."""
        message = self.listen(deadline, late)
        if message.get("say") != word:
            raise Over("crash", f"the worker said {message.get('say')!r:.80} instead of {word!r}")
        return message

    def kill(self) -> str:
        """Ends the process and all that it started; gives the tail of what it printed."""
        printed = super().kill()
        self._channel.close()
        return printed

    def _next(self) -> dict[str, Any] | None:
        if len(self._heard) < LENGTH:
            return None
        size = int.from_bytes(self._heard[:LENGTH], "little")
        if size > _LONGEST:
            raise Over("crash", f"the worker broke the protocol: a message of {size} bytes")
        if len(self._heard) < LENGTH + size:
            return None
        body = bytes(self._heard[LENGTH : LENGTH + size])
        del self._heard[: LENGTH + size]
        try:
            return decode(body)
        except ValueError as error:
            raise Over("crash", f"the worker broke the protocol: {error}") from None

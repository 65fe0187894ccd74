"""Tries to break out of a sandbox, in every way that confinement promises to stop, and says what came of it.

The checks are made from inside, by a process started exactly as an experiment is. What they look for is put there
first: a server that listens, a file in the home folder, a key in the environment, a child that detaches itself.
"""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inner.sandbox import Confined, Tier, spawn

_KEY = "BILEVEL_DOCTOR_KEY"
_SCRATCH_MIB = 4
_SECONDS = 30.0

# Runs inside. Nothing of ours is there: the standard library only.
_INSIDE = """
import json, os, socket, subprocess, sys, tempfile
port, secret, key, pipe, scratch = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])

def connects():
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
        return True
    except OSError:
        return False

def writes(folder):
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

def overfills():
    try:
        with tempfile.TemporaryFile() as file:
            for _ in range(2 * scratch):
                file.write(b"x" * 2**20)
            file.flush()
        return True
    except OSError:
        return False

home = os.path.dirname(os.path.dirname(secret))
folders = ["/", "/usr", "/etc", "/dev", "/proc", "/var", "/run", home, sys.prefix, sys.base_prefix]
folders.append(os.path.dirname(os.__file__))
found = {
    "connects": connects(),
    "interfaces": sorted(name for _, name in socket.if_nameindex() if name != "lo"),
    "reads_home": os.path.exists(secret),
    "reads_key": key in os.environ,
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "writes": sorted({folder for folder in folders if writes(folder)}),
    "scratch": writes(tempfile.gettempdir()),
    "overfills": overfills(),
}
# Detached: a session of its own, its parent gone, the pipe held open. It would end by itself before long.
waits = "import os, time; os.fork() and os._exit(0); os.setsid(); print(flush=True); time.sleep(9)"
child = subprocess.Popen([sys.executable, "-I", "-c", waits], stdout=subprocess.PIPE, pass_fds=[pipe])
child.stdout.readline()
print("found " + json.dumps(found), flush=True)
import time; time.sleep(20)
"""


@dataclass(frozen=True)
class Found:
    """What code in a sandbox of this machine could do.

    Attributes:
        connects: to a server on this machine.
        interfaces: names of network interfaces besides the loopback.
        reads_home: a file in the user's home folder; `None` if none could be put there.
        reads_key: a variable of our environment.
        processes: how many it saw.
        writes: folders that it could write to, besides its own.
        scratch: whether it could write to its own folder.
        overfills: its own folder, past the limit.
        outlives: whether a detached child of it lived on after it was killed.
    """

    connects: bool
    interfaces: tuple[str, ...]
    reads_home: bool | None
    reads_key: bool
    processes: int
    writes: tuple[str, ...]
    scratch: bool
    overfills: bool
    outlives: bool

    def leaks(self) -> Iterator[str]:
        """What a sandbox should have stopped, or lacks."""
        if self.connects or self.interfaces:
            yield "it reaches the network"
        if self.reads_home:
            yield "it reads the home folder"
        if self.reads_key:
            yield "it sees the keys in the environment"
        if self.writes:
            yield f"it can write to {', '.join(self.writes)}"
        if not self.scratch:
            yield "it cannot write to its own /tmp"
        if self.overfills:
            yield "it can fill the disk"
        if self.outlives:
            yield "its children live on after it is killed"


def probe(tier: Tier) -> Found:
    """Starts a process confined as an experiment is, and has it try.

    Raises:
        OSError: the process did not start, or did not answer.
    """
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        secret = stack.enter_context(_secret())
        stack.enter_context(_key())
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        try:
            arguments = [str(server.getsockname()[1]), str(secret or "/nowhere/none"), _KEY, str(writing)]
            confined = spawn(
                ["-I", "-c", _INSIDE, *arguments, str(_SCRATCH_MIB)],
                tier=tier,
                descriptors=[writing],
                scratch_mib=_SCRATCH_MIB,
            )
        finally:
            os.close(writing)
        stack.callback(confined.kill)
        found: dict[str, Any] = _answer(confined)
        confined.kill()
        # The detached child holds the other end: the pipe ends when it does.
        outlives = not select.select([reading], [], [], 2.0)[0]
    found |= {"interfaces": tuple(found["interfaces"]), "writes": tuple(found["writes"]), "outlives": outlives}
    return Found(**found | ({"reads_home": None} if secret is None else {}))


def _answer(confined: Confined) -> dict[str, Any]:
    assert confined.process.stdout is not None
    pipe, said, deadline = confined.process.stdout.fileno(), b"", time.monotonic() + _SECONDS
    while (left := deadline - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
        part = os.read(pipe, 2**16)
        said += part
        *lines, _ = said.split(b"\n")
        for line in lines:
            if line.startswith(b"found "):
                answer: dict[str, Any] = json.loads(line[6:])
                return answer
        if not part:
            break
    last = said.decode("utf-8", "replace").strip().splitlines()
    raise OSError(last[-1] if last else "it said nothing")


@contextmanager
def _secret() -> Iterator[Path | None]:
    """A file in the home folder, for as long as it is needed; `None` where that folder cannot be written to."""
    with ExitStack() as stack:
        secret = None
        with suppress(OSError, RuntimeError):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bilevel-doctor-", dir=Path.home()))
            secret = Path(folder) / "secret"
            secret.write_text("seen\n", encoding="utf-8")
        yield secret


@contextmanager
def _key() -> Iterator[None]:
    os.environ[_KEY] = "seen"
    try:
        yield
    finally:
        del os.environ[_KEY]

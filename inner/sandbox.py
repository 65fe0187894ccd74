"""Confinement: bubblewrap, or nothing and said so.

What bubblewrap gives: no network, no capabilities, an empty environment, own process table, a read-only system with
the interpreter and torch and nothing of the user's, one writable folder (`/tmp`, in memory, of limited size), and death
with the parent. Without it the same command runs as an ordinary child with a clean environment: good for code that we
wrote, and for nothing else. `tier()` says which holds on this machine; every run stores it.

Not defended: memory is watched and not capped, so it can be exceeded for a moment; without bubblewrap, or on a machine
whose system calls `inner/seccomp.py` does not know, a child whose death its parent ignores takes its processor seconds
out of the count; and what Python itself consists of can be read, also where a corpus was made from it.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inner.seccomp import threads_only

Tier = Literal["bubblewrap", "none"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_NVIDIA_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
_NVIDIA_FOLDERS = ("/usr/local/nvidia", "/usr/local/cuda", "/sys", "/etc/nvidia", "/opt/nvidia")


@functools.cache
def tier() -> Tier:
    """The strongest confinement that works here: found by trying it once, since an installed bwrap may be forbidden."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "none"
    command = [bwrap, *_confine(scratch_mib=1, readonly=(), gpu=False), "--", "/usr/bin/env", "true"]
    try:
        works = subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return "bubblewrap" if works else "none"


@dataclass
class Confined:
    """A process in its own sandbox.

    Attributes:
        process: the outermost process; its output is a pipe.
        scratch: the folder that stands in for `/tmp` where there is no bubblewrap; removed by `kill`.
    """

    process: subprocess.Popen[bytes]
    scratch: Path | None

    def kill(self) -> None:
        """Kills the process and everything that it started, waits, and removes what it wrote. Safe to call twice."""
        if self.process.returncode is None:
            # Stopped first, so that it starts nothing more while we look at what it has started.
            os.kill(self.process.pid, signal.SIGSTOP)
            family = []
            for pid in _family(self.process.pid):
                with suppress(OSError):  # it has ended, or the kernel is too old for this
                    family.append(os.pidfd_open(pid))
            # Descendants first: bubblewrap's own init takes its whole process table along, and is gone when that is.
            for descriptor in reversed(family):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for descriptor in family:
                dying = select.poll()
                dying.register(descriptor, select.POLLIN)
                dying.poll(_DYING_MILLISECONDS)
                os.close(descriptor)
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def exit_status(self) -> str | None:
        """How the process ended, in words, `None` while it runs. Not after `kill`."""
        # It stays to be waited for, so that its number stays ours.
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        # bubblewrap tells of a signal as a shell does.
        number = ended.si_status if ended.si_code != os.CLD_EXITED else ended.si_status - 128
        if number in signal.valid_signals():
            return f"killed by {signal.Signals(number).name}"
        return f"exit status {ended.si_status}"

    def usage(self) -> tuple[float, int]:
        """Processor seconds so far, and resident bytes now, of the process and all that descend from it.

        What several of them share is counted for each: see `footprint`.
        """
        seconds, resident = 0.0, 0
        for pid in _family(self.process.pid):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                resident += _resident(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            # utime, stime, and the same of children that have ended and were waited for.
            seconds += sum(int(field) for field in fields[11:15]) / _TICKS
        return seconds, resident

    def footprint(self) -> int:
        """Bytes of memory, what is shared counted once. It takes milliseconds, so `usage` is asked first."""
        total = 0
        for pid in _family(self.process.pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                try:
                    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                        total += sum(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))
                except PermissionError:  # who hides what it shares is not spared it
                    total += _resident(pid)
        return total


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


def _family(pid: int) -> Iterator[int]:
    """The process and all that descend from it, parents first."""
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        yield pid
        # A thread, or all of the process, may end while we look.
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with (
                    suppress(FileNotFoundError, ProcessLookupError),
                    open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file,
                ):
                    waiting += [int(child) for child in file.read().split()]


# The kernel ties "dies with its parent" to the thread that started the child, so one thread that lives as long as this
# process starts them all.
_SPAWNER = ThreadPoolExecutor(1, "spawn")
# By a shell, since nothing of ours may run between fork and exec where there are threads.
_NO_CORE = ("/bin/sh", "-c", 'ulimit -c 0; exec "$0" "$@"')
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_DYING_MILLISECONDS = 5000


def spawn(
    arguments: Sequence[str],
    *,
    tier: Tier,
    readonly: Iterable[Path] = (),
    descriptors: Sequence[int] = (),
    scratch_mib: int = 16,
    threads: int = 1,
    gpu: bool = False,
    variables: Mapping[str, str] | None = None,
    packages: bool = True,
    forks: bool = True,
) -> Confined:
    """Starts this interpreter in a sandbox of its own.

    Args:
        arguments: what follows the interpreter on its command line.
        tier: the confinement to use.
        readonly: files or folders, besides the system and the interpreter, that it may read; seen at their own paths.
        descriptors: file descriptors that it inherits, under the same numbers.
        scratch_mib: size of its one writable folder.
        threads: processor threads that numerical libraries may use.
        gpu: whether it may use this machine's GPUs.
        variables: of the environment, besides the few that every process gets.
        packages: whether it may see the installed packages; else the standard library alone (bubblewrap only).
        forks: whether it may start processes of its own (else refused with bubblewrap only).
    """
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",  # noqa: S108  (the sandbox's own)
        "TMPDIR": "/tmp",  # noqa: S108
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",  # the order of a set of strings must not differ from one run to the next
    }
    if gpu:
        environment |= {k: v for k, v in os.environ.items() if k in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    environment |= variables or {}
    command = [sys.executable, *arguments]
    scratch, rules = None, None
    if tier == "bubblewrap":
        settings = [word for name, value in environment.items() for word in ("--setenv", name, value)]
        bwrap = shutil.which("bwrap") or "bwrap"
        confine = _confine(scratch_mib=scratch_mib, readonly=readonly, gpu=gpu, packages=packages)
        if not forks and (program := threads_only()) is not None:
            rules = os.memfd_create("seccomp")
            os.pwrite(rules, program, 0)
            confine += ["--seccomp", str(rules)]
        command = [bwrap, *confine, "--clearenv", *settings, "--", *command]
    else:
        scratch = Path(tempfile.mkdtemp(prefix="bilevel-"))
        environment |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
    try:
        process = _SPAWNER.submit(
            subprocess.Popen,
            [*_NO_CORE, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors if rules is None else [*descriptors, rules],
            cwd=scratch,
            env=environment,
            start_new_session=True,
        ).result()
    finally:
        if rules is not None:
            os.close(rules)
    return Confined(process, scratch)


def _confine(*, scratch_mib: int, readonly: Iterable[Path], gpu: bool, packages: bool = True) -> list[str]:
    words = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    # First, since what is bound below may itself lie in /tmp.
    words += ["--size", str(scratch_mib * 2**20), "--tmpfs", "/tmp"]  # noqa: S108
    bound: list[Path] = []
    system = [Path(folder) for folder in (*_SYSTEM, *(_NVIDIA_FOLDERS if gpu else ()))]
    for path in [*system, *_interpreter()]:
        if not path.exists() or any(path.is_relative_to(folder) for folder in bound):
            continue
        if path in system and path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        else:
            words += ["--ro-bind", str(path), str(path)]
            bound.append(path)
    hidden = [path for path in _packages() if not packages and any(path.is_relative_to(folder) for folder in bound)]
    for path in hidden:
        words += ["--size", "65536", "--tmpfs", str(path)]
    for path in readonly:
        words += ["--ro-bind", str(path), str(path)]
    for path in hidden:
        words += ["--remount-ro", str(path)]
    words += ["--proc", "/proc", "--dev", "/dev"]
    if gpu:
        nodes = [Path("/dev") / name for name in _NVIDIA_DEVICES] + sorted(Path("/dev").glob("nvidia[0-9]*"))
        words += [word for node in nodes if node.exists() for word in ("--dev-bind", str(node), str(node))]
        # Compiling for a GPU takes a pool of processes, whose locks lie here.
        words += ["--size", str(scratch_mib * 2**20), "--tmpfs", "/dev/shm"]  # noqa: S108
    # /proc too: for root the kernel's settings lie in it, and a capability is not needed to write them.
    return [*words, *(w for folder in ("/proc", "/dev", "/") for w in ("--remount-ro", folder)), "--chdir", "/tmp"]  # noqa: S108


def _interpreter() -> list[Path]:
    """The folders that the interpreter and torch need, outermost first, without the user's files beside them."""
    roots = {Path(sys.base_prefix), Path(sys.base_exec_prefix), Path(sys.prefix)}
    roots |= {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots |= {Path(sys.executable).resolve().parent, Path(sys.executable).parent}
    return sorted((root for root in roots if root.exists()), key=lambda path: len(path.parts))


def _packages() -> list[Path]:
    """The folders of installed packages, wherever this interpreter or the one that it was made from keeps them."""
    roots = {Path(sys.prefix), Path(sys.base_prefix), Path("/usr"), Path("/usr/local")}
    found = {folder.resolve() for root in roots for folder in root.glob("lib*/python3*/*-packages")}
    return sorted(found | {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")})

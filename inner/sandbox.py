"""Confinement: bubblewrap, or nothing and said so.

What bubblewrap gives: no network, no capabilities, an empty environment, own process table, a read-only system with
the interpreter and torch and nothing of the user's, one writable folder (`/tmp`, in memory, of limited size), and death
with the parent. Without it the same command runs as an ordinary child with a clean environment: good for code that we
wrote, and for nothing else. `tier()` says which holds on this machine; every run stores it.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def usage(self) -> tuple[float, int]:
        """Processor seconds so far, and resident bytes now, of the process and all that descend from it."""
        seconds, resident = 0.0, 0
        waiting = [self.process.pid]
        while waiting:
            pid = waiting.pop()
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                    pages = int(file.read().split()[1])
                threads = os.listdir(f"/proc/{pid}/task")
                for thread in threads:
                    with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                        waiting += [int(child) for child in file.read().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
            # utime, stime, and the same of children that have ended and were waited for.
            seconds += sum(int(field) for field in fields[11:15]) / _TICKS
            resident += pages * _PAGE
        return seconds, resident


# The kernel ties "dies with its parent" to the thread that started the child, so one thread that lives as long as this
# process starts them all.
_SPAWNER = ThreadPoolExecutor(1, "spawn")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def spawn(
    arguments: Sequence[str],
    *,
    tier: Tier,
    readonly: Iterable[Path] = (),
    descriptors: Sequence[int] = (),
    scratch_mib: int = 16,
    threads: int = 1,
    gpu: bool = False,
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
    """
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",  # noqa: S108  (the sandbox's own)
        "TMPDIR": "/tmp",  # noqa: S108
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if gpu:
        environment |= {k: v for k, v in os.environ.items() if k in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")}
    command = [sys.executable, *arguments]
    scratch = None
    if tier == "bubblewrap":
        settings = [word for name, value in environment.items() for word in ("--setenv", name, value)]
        bwrap = shutil.which("bwrap") or "bwrap"
        confine = _confine(scratch_mib=scratch_mib, readonly=readonly, gpu=gpu)
        command = [bwrap, *confine, "--clearenv", *settings, "--", *command]
    else:
        scratch = Path(tempfile.mkdtemp(prefix="bilevel-"))
        environment |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
    process = _SPAWNER.submit(
        subprocess.Popen,
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        cwd=scratch,
        env=environment,
        start_new_session=True,
    ).result()
    # Set from outside: nothing then runs between fork and exec, which is unsafe where threads are.
    resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
    return Confined(process, scratch)


def _confine(*, scratch_mib: int, readonly: Iterable[Path], gpu: bool) -> list[str]:
    words = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    # First, since what is bound below may itself lie in /tmp.
    words += ["--size", str(scratch_mib * 2**20), "--tmpfs", "/tmp"]  # noqa: S108
    bound = []
    for folder in [*_SYSTEM, *(_NVIDIA_FOLDERS if gpu else ())]:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.exists(folder):
            words += ["--ro-bind", folder, folder]
            bound.append(Path(folder))
    for path in [*_interpreter(), *readonly]:
        if not any(path.is_relative_to(folder) for folder in bound):
            words += ["--ro-bind", str(path), str(path)]
            bound.append(path)
    words += ["--proc", "/proc", "--dev", "/dev"]
    if gpu:
        nodes = [Path("/dev") / name for name in _NVIDIA_DEVICES] + sorted(Path("/dev").glob("nvidia[0-9]*"))
        words += [word for node in nodes if node.exists() for word in ("--dev-bind", str(node), str(node))]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108


def _interpreter() -> list[Path]:
    """The folders that the interpreter and torch need, outermost first, without the user's files beside them."""
    roots = {Path(sys.base_prefix), Path(sys.base_exec_prefix), Path(sys.prefix)}
    roots |= {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots |= {Path(sys.executable).resolve().parent, Path(sys.executable).parent}
    return sorted((root for root in roots if root.exists()), key=lambda path: len(path.parts))

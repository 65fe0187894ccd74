"""What the record asks of the operating system: a lock, a copy that is never half there, and errors in one line."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from traces.errors import BusyError, LabError, MachineError


def acquire(path: Path) -> int:
    """Takes a lock by its file and writes our process id into it.

    The system frees it when the returned descriptor is closed, or when the process dies in whatever way.

    Raises:
        BusyError: it is held; names the holder.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise BusyError(
            f"process {holder} is writing to {path.parent}: wait for it, stop it with `kill {holder}`, "
            "or name another folder with --lab"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def copy(source: Path, target: Path) -> None:
    """Copies a file so that the target is at any moment the old one or the new one, also after a power cut.

    Raises:
        OSError: the disk is full, or not ours to write to. The target stays as it was.
    """
    aside = target.with_name(f"{target.name}.part")
    # In a process of its own: closing any descriptor of the record in this one would drop DuckDB's lock on it, as
    # POSIX has it.
    copied = subprocess.run(["cp", "--", source, aside], capture_output=True, text=True)
    if copied.returncode != 0:
        aside.unlink(missing_ok=True)
        raise OSError(copied.stderr.strip().rpartition(": ")[2] or f"cp ended with status {copied.returncode}")
    _to_disk(aside)
    os.replace(aside, target)
    _to_disk(target.parent)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def in_one_line(lab: Path, doing: str) -> Iterator[None]:
    """Turns what the disk refuses, through DuckDB or not, into one line with the way out. Other errors pass.

    Raises:
        BusyError: a program that does not know our lock has the record open.
        LabError: the record is not a DuckDB file, or one of a DuckDB too new.
        MachineError: anything else that the disk refuses.
    """
    try:
        yield
    except (OSError, duckdb.IOException, duckdb.TransactionException, duckdb.FatalException) as error:
        line = str((isinstance(error, OSError) and error.strerror) or error).splitlines()[0]
        if "Could not set lock" in line:
            raise BusyError(f"another program has the record of {lab} open: close it first ({line})") from error
        if "not a valid DuckDB" in line or "with version number" in line:
            raise LabError(f"{lab} is not a laboratory that can be read: name another with --lab ({line})") from error
        free = shutil.disk_usage(next(p for p in (lab, *lab.absolute().parents) if p.exists())).free
        raise MachineError(
            f"{doing} failed in {lab}: {line} ({free / 2**30:.1f} GiB free): make room or mend the rights of the "
            "folder, then `bilevel resume`; what was recorded before is safe"
        ) from error

"""Memory that is shared with a sandbox: what goes in cannot be changed there, what is shared keeps its size."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from inner.corpus import Corpus
from traces.errors import TrialError

_FIXED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Shared:
    """Anonymous memory of a fixed size, to be given away as `descriptor`; nobody can shrink it under our feet."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _FIXED)
            self._memory = mmap.mmap(self.descriptor, size)
        except OSError as error:
            os.close(self.descriptor)
            raise TrialError(f"no {size:,} bytes of memory to share with an experiment: {error.strerror}") from None

    def array(self, kind: type[Any], shape: tuple[int, ...]) -> Any:
        """The memory as an array, which keeps it alive."""
        return np.frombuffer(self._memory, dtype=kind, count=int(np.prod(shape))).reshape(shape)

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self.descriptor)


_lock = threading.Lock()


def training_tokens(corpus: Corpus) -> int:
    """The descriptor of the training tokens that workers get: a copy in memory, made once a corpus.

    Nobody can write to it, by whatever path it is opened again.
    """
    with _lock:
        return _sealed_copy(corpus.folder / "train.bin", corpus.hash)


@cache
def _sealed_copy(path: Path, digest: str) -> int:
    descriptor = os.memfd_create("tokens", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(path, "rb") as source, open(descriptor, "wb", buffering=0, closefd=False) as copy:
            while part := memoryview(source.read(2**24)):
                while part:
                    part = part[copy.write(part) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED | fcntl.F_SEAL_WRITE)
    except OSError as error:
        os.close(descriptor)
        raise TrialError(f"{path} cannot be copied into memory: {error.strerror}") from None
    return descriptor

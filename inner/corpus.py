"""Opens a prepared corpus: a folder of token files with a manifest that vouches for them.

The folder is written by `benchmarks/gpt/prepare.py` and never changed afterwards:

    manifest.json     what the rest is: sizes, counts, hashes
    train.bin, validation.bin, sealed.bin    token ids, uint16 little-endian; every document begins with BOS
    token_bytes.bin   length in bytes of each token, int32 little-endian; 0 for BOS
    tokenizer.json    for whoever wants to read the tokens as text
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.errors import CorpusError

FORMAT = 1
SPLITS = ("train", "validation", "sealed")


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus whose manifest and file sizes hold.

    Attributes:
        folder: where it lies.
        hash: SHA-256 of the manifest, which holds the hashes of all files: it names the data of a run.
        vocab_size: number of token ids, BOS counted in.
        bos: the id that every document begins with.
        token_bytes: shape (vocab_size,), int32: bytes of text that a token stands for; 0 for BOS only.
        manifest: all that the manifest says.
    """

    folder: Path
    hash: str
    vocab_size: int
    bos: int
    token_bytes: NDArray[np.int32]
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> Corpus:
        """Opens a corpus and checks it: the manifest and the sizes always, the content of every file if `verify`.

        Raises:
            CorpusError: there is no corpus, it is of another format, or a file is missing or is not the one that the
                manifest speaks of.
        """
        path = folder / "manifest.json"
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise CorpusError(f"no corpus in {folder}: {error.strerror} (manifest.json); run bilevel prepare") from None
        try:
            manifest = json.loads(raw)
            found = manifest["format"]
            if found != FORMAT:
                raise CorpusError(f"{path} is of format {found}, this version reads {FORMAT}: run bilevel prepare")
            files = list(_files(manifest))
            vocab_size, bos = int(manifest["vocab_size"]), int(manifest["bos"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorpusError(f"{path} is damaged ({error!r}): delete the folder and run bilevel prepare") from None

        for name, size, sha256 in files:
            _check(folder / name, size, sha256 if verify else None)
        token_bytes = np.fromfile(folder / "token_bytes.bin", dtype="<i4").astype(np.int32, copy=False)
        if np.flatnonzero(token_bytes <= 0).tolist() != [bos]:
            raise CorpusError(
                f"{folder / 'token_bytes.bin'} must be 0 for BOS ({bos}) and positive for all other tokens"
            )
        token_bytes.flags.writeable = False
        return cls(folder, hashlib.sha256(raw).hexdigest(), vocab_size, bos, token_bytes, manifest)

    def tokens(self, split: str) -> NDArray[np.uint16]:
        """The token ids of `train`, `validation` or `sealed`: 1-D, read-only, mapped from disk."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return np.memmap(self.folder / self.manifest["splits"][split]["file"], dtype="<u2", mode="r")


def _files(manifest: Mapping[str, Any]) -> Iterator[tuple[str, int | None, str]]:
    """Name, size in bytes where the manifest tells it, and hash of each file. A manifest may not point elsewhere."""
    for split in SPLITS:
        entry = manifest["splits"][split]
        if entry["file"] != f"{split}.bin":
            raise ValueError(f"{split} is in {entry['file']!r}")
        yield entry["file"], 2 * int(entry["tokens"]), str(entry["sha256"])
    yield "token_bytes.bin", 4 * int(manifest["vocab_size"]), str(manifest["token_bytes_sha256"])
    yield "tokenizer.json", None, str(manifest["tokenizer_sha256"])


def _check(path: Path, size: int | None, sha256: str | None) -> None:
    remedy = "delete the folder and run bilevel prepare"
    try:
        found = path.stat().st_size
        if size is not None and found != size:
            raise CorpusError(f"{path} has {found:,} bytes, its manifest says {size:,}: {remedy}")
        if sha256 is not None:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise CorpusError(f"{path} is not the file that its manifest speaks of: {remedy}")
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}; {remedy}") from None

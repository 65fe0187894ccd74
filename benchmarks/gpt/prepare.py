"""Text to tokens, once: `python -m benchmarks.gpt.prepare --source stdlib --vocab-size 1024`.

Locked: no experiment may change this file. What it writes, `inner/corpus.py` reads; where its documents come from,
`sources.py` says. The steps: gather every distinct document, share them out by hash, train a byte-level BPE on training
text only, encode. Everything follows from the documents, the vocabulary size and the version of `tokenizers`: the same
input gives the same hashes, and the order of the files makes no difference.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import platformdirs

from benchmarks.gpt.sources import CLIMBMIX, Part, Report, Source, documents, open_source
from benchmarks.gpt.tokenizer import BOS, encode, token_lengths, train_tokenizer
from inner.corpus import FORMAT, SPLITS, Corpus
from traces.errors import CorpusError, MachineError, UserError

SMALLEST_SPLIT = 4096  # tokens: less than this measures nothing
TOKENIZER_SAMPLE = 1 << 26  # bytes of training text that the tokenizer is trained on, at most

# Which splits the documents of a file are shared among, and up to where on the line from 0 to 1 each one reaches.
_SHARES: dict[Part, tuple[tuple[str, float], ...]] = {
    "all": (("train", 0.90), ("validation", 0.95), ("sealed", 1.0)),
    "train": (("train", 1.0),),
    "held out": (("validation", 0.5), ("sealed", 1.0)),
}
_BATCH = 1 << 23  # bytes of text that are encoded at a time: bounds the memory of large corpora


def prepare(
    source: str, vocab_size: int, cache: Path | None = None, report: Report = lambda line: None, url: str = CLIMBMIX
) -> Path:
    """The folder of a prepared corpus, which is made if it is not in the cache.

    A corpus appears in the cache only when it is complete. Of several processes that ask for the same one, the first
    makes it and the others wait.

    Args:
        source: `stdlib`, `site`, `dir:PATH`, `climbmix` or `climbmix:N`; see `sources.py`.
        vocab_size: number of token ids, 257 to 65536: the bytes, BOS, and what the tokenizer learns.
        cache: where corpora and downloads are kept; else `$BILEVEL_CACHE`, else the user's cache folder.
        report: is told what is being done, a line at a time; silent if all is there.
        url: where the shards of `climbmix` are downloaded from.

    Raises:
        CorpusError: no such source; it is empty, not text, damaged, or too small for its splits or the vocabulary.
        MachineError: no space, no permission to write, or no network.
    """
    if not 257 <= vocab_size <= 65536:
        raise CorpusError(f"vocab_size must be 257 to 65536, got {vocab_size}")
    if cache is None:
        cache = Path(os.environ.get("BILEVEL_CACHE") or platformdirs.user_cache_dir("bilevel"))
    opened = open_source(source, cache / "shards", url)
    parts = [FORMAT, opened.name, opened.fingerprint, vocab_size, version("tokenizers")]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    folder = cache / "corpora" / f"{source.partition(':')[0]}-{vocab_size}-{key}"
    if _is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_name(folder.name + ".lock")):
            if not _is_whole(folder):
                _make(opened, vocab_size, folder, report)
    except OSError as error:
        raise MachineError(
            f"cannot write {error.filename or folder}: {error.strerror or error}; "
            "make room or mend its permissions, or point BILEVEL_CACHE to another folder"
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        Corpus.open(folder)
    except CorpusError:
        return False
    return True


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process holds `path`. The system lets go of it when its holder dies, however it dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(source: Source, vocab_size: int, folder: Path, report: Report) -> None:
    building = folder.with_name(folder.name + ".building")
    shutil.rmtree(building, ignore_errors=True)  # of one who was killed
    building.mkdir()
    try:
        with (building / "documents").open("w+b") as file:
            pool = _Pool(file)
            fetched = _gather(source, pool, report)
            manifest = _encode(source, pool, vocab_size, building, report)
        (building / "documents").unlink()
        manifest |= {"downloads": fetched, "duplicates": pool.duplicates, "not_text": pool.not_text}
        (building / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


class _Pool:
    """Every distinct document once: its text in a file, its place in memory.

    Attributes:
        duplicates: how many documents had been seen before.
        not_text: how many were not UTF-8, or held a zero byte, which texts do not.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self.places: dict[str, dict[bytes, tuple[int, int]]] = {split: {} for split in SPLITS}
        self.duplicates = 0
        self.not_text = 0
        self._seen: set[bytes] = set()
        self._end = 0

    def add(self, content: bytes, part: Part) -> None:
        """Takes a document in and decides its split. Empty ones are passed over."""
        if not content or content.isspace():
            return
        try:
            content.decode()
        except UnicodeDecodeError:
            self.not_text += 1
            return
        if b"\0" in content:
            self.not_text += 1
            return
        digest = hashlib.sha256(content).digest()[:16]
        if digest in self._seen:
            self.duplicates += 1
            return
        self._seen.add(digest)
        at = int.from_bytes(digest[:8], "big") / 2**64
        split = next(name for name, end in _SHARES[part] if at < end)
        self.places[split][digest] = (self._end, len(content))
        self.file.write(content)
        self._end += len(content)

    def size(self, split: str) -> int:
        """Bytes of text in a split."""
        return sum(length for _, length in self.places[split].values())

    def batches(self, split: str, limit: int | None = None) -> Iterator[list[bytes]]:
        """The documents of a split, some at a time, up to a limit in bytes.

        They come in the order of their hashes: a shuffle that is the same everywhere, so that the beginning of a split
        is a fair sample of it.
        """
        batch, size, total = [], 0, 0
        for _, (start, length) in sorted(self.places[split].items()):
            if limit is not None and total + length > limit and total:
                break
            self.file.seek(start)
            batch.append(self.file.read(length))
            size, total = size + length, total + length
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def _gather(source: Source, pool: _Pool, report: Report) -> list[dict[str, Any]]:
    """Reads the whole source into `pool`. Returns the records of what was downloaded."""
    files = source.files(report)
    report(f"reading {source.name}: {len(files):,} files")
    for file in files:
        for content in documents(file.path):
            pool.add(content, file.part)
    if not any(pool.places.values()):
        why = f"{pool.not_text} files or rows are not UTF-8 text" if pool.not_text else "nothing in it but white space"
        raise CorpusError(f"{source.name} holds no text: {why}")
    return [
        {"name": f.fetched.name, "size": f.fetched.size, "sha256": f.fetched.sha256, "checked": f.fetched.checked}
        for f in files
        if f.fetched
    ]


def _encode(source: Source, pool: _Pool, vocab_size: int, folder: Path, report: Report) -> dict[str, Any]:
    """Writes everything but the manifest, and returns that."""
    for split in SPLITS:
        _require(source, pool, split, tokens=None)
    report(f"training a tokenizer of {vocab_size:,} tokens on {min(pool.size('train'), TOKENIZER_SAMPLE) / 1e6:.1f} MB")
    tokenizer = train_tokenizer(pool.batches("train", TOKENIZER_SAMPLE), vocab_size)
    if tokenizer.get_vocab_size() < vocab_size:
        raise CorpusError(
            f"{source.name} has text for {tokenizer.get_vocab_size():,} different tokens only, not {vocab_size:,}: "
            "give more text or a smaller vocab_size"
        )
    lengths = token_lengths(tokenizer)
    (folder / "token_bytes.bin").write_bytes(lengths.astype("<i4").tobytes())
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")

    splits: dict[str, Any] = {}
    for split in SPLITS:
        report(f"encoding {split}: {len(pool.places[split]):,} documents, {pool.size(split) / 1e6:.1f} MB")
        path = folder / f"{split}.bin"
        tokens = 0
        with path.open("wb") as out:
            for batch in pool.batches(split):
                ids = encode(tokenizer, lengths, batch)
                tokens += len(ids)
                out.write(ids.astype("<u2").tobytes())
        _require(source, pool, split, tokens)
        splits[split] = {
            "file": path.name,
            "sha256": _sha256(path),
            "tokens": tokens,
            "documents": len(pool.places[split]),
            "bytes": pool.size(split),
        }
    return {
        "format": FORMAT,
        "source": source.name,
        "vocab_size": vocab_size,
        "bos": tokenizer.token_to_id(BOS),
        "tokenizer_sha256": _sha256(folder / "tokenizer.json"),
        "token_bytes_sha256": _sha256(folder / "token_bytes.bin"),
        "tokenizers_version": version("tokenizers"),
        "splits": splits,
    }


def _require(source: Source, pool: _Pool, split: str, tokens: int | None) -> None:
    """Raises `CorpusError` if a split has no document, or too few tokens."""
    count = sum(len(places) for places in pool.places.values())
    size = sum(pool.size(name) for name in SPLITS)
    have = f"{source.name} has {count:,} different documents, {size:,} bytes"
    if not pool.places[split]:
        raise CorpusError(
            f"{have}, and none of them falls to {split}: give at least 100 documents (a .txt file is one)"
        )
    if tokens is not None and tokens < SMALLEST_SPLIT:
        needed = size * SMALLEST_SPLIT // tokens
        raise CorpusError(
            f"{have}: its {split} split has {tokens:,} tokens and needs {SMALLEST_SPLIT:,}: give about {needed:,} bytes"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Prepares a corpus and prints its folder and counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpt.prepare", description="Text to tokens, once.")
    parser.add_argument("--source", default="stdlib", help="stdlib, site, dir:PATH, climbmix or climbmix:N")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--cache", type=Path, help="instead of $BILEVEL_CACHE or the user's cache folder")
    parser.add_argument("--url", default=CLIMBMIX, help="folder that the shards of climbmix are downloaded from")
    options = parser.parse_args()
    try:
        folder = prepare(options.source, options.vocab_size, options.cache, print, options.url)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for split, entry in Corpus.open(folder).manifest["splits"].items():
        counts = f"{entry['tokens']:>13,} tokens {entry['documents']:>9,} documents {entry['bytes']:>15,} bytes"
        print(f"{split:<10} {counts}")
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

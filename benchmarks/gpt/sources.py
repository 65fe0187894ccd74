"""Where the documents of a corpus come from.

    stdlib        the Python files of the running CPython's standard library, tests left out: always there
    site          source and documentation of the installed packages: a large corpus on a machine without a network
    dir:PATH      the .txt, .jsonl and .parquet files under a folder
    climbmix:N    the first N shards (10 if not said) that karpathy/autoresearch trains on, and its validation shard

A source is a list of files; a file is one document, or, if it is .jsonl or .parquet, one document a row, in the field
`text`. Documents leave this module as raw bytes: what is text and what is a duplicate is for `prepare.py` to decide.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.gpt.download import Fetched, fetch
from traces.errors import CorpusError

Report = Callable[[str], None]
Part = Literal["all", "train", "held out"]

# The folder on the hub, and its last shard for validation, are those of karpathy/autoresearch, prepare.py.
CLIMBMIX = "https://huggingface.co/datasets/karpathy/climbmix-400b-shuffle/resolve/main"
VALIDATION_SHARD = 6542
TRAINING_SHARDS = 10

# Source and prose. Data that happens to be text (.json, .csv, .yaml, .svg) is left out, and so is what is longer than
# any file that people write.
SITE_SUFFIXES = frozenset(
    ".py .pyi .pyx .pxd .pxi .c .cc .cpp .cu .cuh .h .hpp .js .ts .rs .md .rst .txt .toml .cmake .jinja".split()
)
SITE_LONGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that documents are read from.

    Attributes:
        path: where it lies.
        part: which splits its documents may go to.
        fetched: the record of its download, if it was downloaded.
    """

    path: Path
    part: Part = "all"
    fetched: Fetched | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Some documents.

    Attributes:
        name: as the user writes it, with absolute paths.
        fingerprint: a text that differs when the documents may differ; cheap to find out.
        files: the files, in order; downloads what is missing.
    """

    name: str
    fingerprint: str
    files: Callable[[Report], list[SourceFile]]


def open_source(name: str, shards: Path, url: str = CLIMBMIX) -> Source:
    """The source that a user names.

    Args:
        name: see the head of this module.
        shards: the folder that downloads are kept in.
        url: where the shards of `climbmix` are downloaded from.

    Raises:
        CorpusError: no such source, or its folder is missing.
    """
    kind, _, rest = name.partition(":")
    if name == "stdlib":
        return _stdlib()
    if name == "site":
        return _site()
    if kind == "dir" and rest:
        return _folder(Path(rest).expanduser())
    if kind == "climbmix":
        count = TRAINING_SHARDS if name == kind else int(rest) if rest.isdecimal() else 0
        if not 1 <= count <= VALIDATION_SHARD:
            raise CorpusError(
                f"{name} must name 1 to {VALIDATION_SHARD} training shards, such as climbmix:{TRAINING_SHARDS}"
            )
        return _climbmix(count, shards, url)
    raise CorpusError(f"unknown source {name!r}: use stdlib, site, dir:PATH, climbmix or climbmix:N")


def _stdlib() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    skip = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    # The version with its build: distributions patch the library.
    return Source("stdlib", sys.version, lambda _: [SourceFile(p) for p in _walk(root, {".py"}, skip)])


def _site() -> Source:
    roots = sorted({Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")})
    # Packages carry their versions in the names of these folders; listing all files would take a second.
    installed = sorted({entry for root in roots if root.is_dir() for entry in os.listdir(root)})
    versions = [entry for entry in installed if entry.endswith((".dist-info", ".egg-info"))]

    def files(_: Report) -> list[SourceFile]:
        found = (path for root in roots for path in _walk(root, SITE_SUFFIXES, versions))
        return [SourceFile(path) for path in found if path.stat().st_size <= SITE_LONGEST]

    return Source("site", json.dumps([sys.version, versions]), files)


def _folder(root: Path) -> Source:
    if not root.is_dir():
        raise CorpusError(f"no folder {root}: dir: takes a folder of .txt, .jsonl or .parquet files")
    root = root.resolve()
    paths = list(_walk(root, {".txt", ".jsonl", ".parquet"}))
    if not paths:
        raise CorpusError(f"{root} has no .txt, .jsonl or .parquet file")
    listing = [(str(path.relative_to(root)), (s := path.stat()).st_size, s.st_mtime_ns) for path in paths]
    return Source(f"dir:{root}", json.dumps(listing), lambda _: [SourceFile(path) for path in paths])


def _climbmix(count: int, shards: Path, url: str) -> Source:
    url = url.rstrip("/")
    folder = shards / hashlib.sha256(url.encode()).hexdigest()[:16]

    def shard(number: int, part: Part, report: Report) -> SourceFile:
        name = f"shard_{number:05d}.parquet"
        return SourceFile(folder / name, part, fetch(f"{url}/{name}", folder / name, report))

    def files(report: Report) -> list[SourceFile]:
        # The held-out shard comes first: a document that is in both then stays out of training.
        held_out = shard(VALIDATION_SHARD, "held out", report)
        return [held_out, *(shard(number, "train", report) for number in range(count))]

    return Source(f"climbmix:{count}", url, files)


def _walk(root: Path, suffixes: Collection[str], skip: Collection[str] = ()) -> Iterator[Path]:
    """The files under `root` that end like this, in the order of their names; folders of `skip` are not entered."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in skip)
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in suffixes and path.is_file():
                yield path


def documents(path: Path) -> Iterator[bytes]:
    """The documents of one file, as they are: neither checked nor decoded.

    Raises:
        CorpusError: the file cannot be read, or a row has no field `text`.
    """
    try:
        if path.suffix == ".jsonl":
            yield from _jsonl(path)
        elif path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            yield path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}") from None


def _jsonl(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise CorpusError(f"{path}, line {number}: not JSON") from None
            text = row.get("text") if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise CorpusError(f'{path}, line {number}: no field "text" with a string in it')
            # JSON can say halves of characters that UTF-8 cannot; they pass here and are found to be no text later.
            yield text.encode("utf-8", "surrogatepass")


def _parquet(path: Path) -> Iterator[bytes]:
    import pyarrow as pa  # a tenth of a second that most corpora never need
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        column = file.schema_arrow.field("text").type
    except KeyError:
        raise CorpusError(f'{path} has no column "text", only {", ".join(file.schema_arrow.names)}') from None
    except pa.ArrowException as error:
        raise CorpusError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None
    if not (pa.types.is_string(column) or pa.types.is_large_string(column)):
        raise CorpusError(f'{path}: the column "text" holds {column}, not strings')
    try:
        for batch in file.iter_batches(batch_size=1024, columns=["text"]):
            rows = (
                batch.column(0).cast(pa.large_binary()).to_pylist()
            )  # not decoded: what is no UTF-8 is left to the caller
            yield from (row for row in rows if row is not None)
    except pa.ArrowException as error:
        raise CorpusError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    finally:
        file.close()

"""A corpus small enough to be made for each test that wants one."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from inner.corpus import SPLITS, Corpus

BOS = 0


def write_corpus(folder: Path, vocab: int = 64, lengths=None, **splits) -> Corpus:
    """Writes a corpus by hand: random tokens where a split is not given, each document begun by token 0."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    lengths = np.arange(vocab, dtype="<i4") % 5 + 1 if lengths is None else np.asarray(lengths, dtype="<i4")
    lengths[BOS] = 0
    files = {"tokenizer.json": b"{}", "token_bytes.bin": lengths.tobytes()}
    manifest = {"format": 1, "source": "test", "vocab_size": vocab, "bos": BOS, "splits": {}}
    for name in SPLITS:
        ids = splits.get(name)
        if ids is None:
            ids = rng.integers(1, vocab, 4000)
            ids[::100] = BOS
        files[f"{name}.bin"] = np.asarray(ids, dtype="<u2").tobytes()
        manifest["splits"][name] = {"file": f"{name}.bin", "tokens": len(ids), "documents": 1, "bytes": 1}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    for name in SPLITS:
        manifest["splits"][name]["sha256"] = hashlib.sha256(files[f"{name}.bin"]).hexdigest()
    manifest["tokenizer_sha256"] = hashlib.sha256(files["tokenizer.json"]).hexdigest()
    manifest["token_bytes_sha256"] = hashlib.sha256(files["token_bytes.bin"]).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return Corpus.open(folder)


@pytest.fixture
def make_corpus(tmp_path):
    """Writes a corpus; see `write_corpus`."""
    return lambda **about: write_corpus(tmp_path / "corpus", **about)

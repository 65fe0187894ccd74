"""A corpus opens only if it is the one that its manifest speaks of."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from inner.corpus import SPLITS, Corpus
from traces.errors import CorpusError

BOS, VOCAB = 3, 260


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of three splits, written by hand from the description of the format."""
    manifest = {"format": 1, "source": "test", "vocab_size": VOCAB, "bos": BOS, "splits": {}}
    lengths = np.arange(1, VOCAB + 1, dtype="<i4")
    lengths[BOS] = 0
    files = {"tokenizer.json": b"{}", "token_bytes.bin": lengths.tobytes()}
    for number, split in enumerate(SPLITS):
        ids = np.array([BOS, *range(10, 20 + number)], dtype="<u2")
        files[f"{split}.bin"] = ids.tobytes()
        manifest["splits"][split] = {"file": f"{split}.bin", "tokens": len(ids), "documents": 1, "bytes": 10}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for split in SPLITS:
        manifest["splits"][split]["sha256"] = hashlib.sha256(files[f"{split}.bin"]).hexdigest()
    manifest["tokenizer_sha256"] = hashlib.sha256(files["tokenizer.json"]).hexdigest()
    manifest["token_bytes_sha256"] = hashlib.sha256(files["token_bytes.bin"]).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def rewrite(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_was_written_is_read(folder):
    corpus = Corpus.open(folder, verify=True)
    assert (corpus.folder, corpus.vocab_size, corpus.bos) == (folder, VOCAB, BOS)
    assert corpus.hash == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert corpus.tokens("sealed").tolist() == [BOS, *range(10, 22)]
    assert corpus.tokens("train").dtype == np.uint16
    assert corpus.token_bytes.dtype == np.int32
    assert corpus.token_bytes.shape == (VOCAB,)
    assert corpus.token_bytes[[BOS, 0, 4]].tolist() == [0, 1, 5]


def test_nothing_of_it_can_be_written_to(folder):
    corpus = Corpus.open(folder)
    for array in (corpus.tokens("train"), corpus.token_bytes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_an_unknown_split_is_named(folder):
    with pytest.raises(ValueError, match="got 'test'"):
        Corpus.open(folder).tokens("test")


def test_a_folder_without_a_manifest_is_no_corpus(tmp_path):
    with pytest.raises(CorpusError, match=r"no corpus in .*bilevel prepare"):
        Corpus.open(tmp_path)


def test_another_format_is_refused(folder):
    rewrite(folder, format=2)
    with pytest.raises(CorpusError, match="of format 2, this version reads 1"):
        Corpus.open(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 1}', b'{"format": 1, "splits": 3}', b"\xff"])
def test_a_manifest_that_is_none_is_refused(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(CorpusError, match=r"manifest.json is damaged"):
        Corpus.open(folder)


def test_a_manifest_cannot_point_out_of_its_folder(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["file"] = "../train.bin"
    rewrite(folder, splits=manifest["splits"])
    with pytest.raises(CorpusError, match="damaged"):
        Corpus.open(folder)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "sealed.bin", "token_bytes.bin"])
def test_a_file_of_another_size_is_refused(folder, name):
    with (folder / name).open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(CorpusError, match=f"{name} has .* bytes, its manifest says"):
        Corpus.open(folder)


@pytest.mark.parametrize("name", ["train.bin", "token_bytes.bin", "tokenizer.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(CorpusError, match=f"{name} cannot be read: No such file"):
        Corpus.open(folder)


def test_a_changed_count_is_refused(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["validation"]["tokens"] += 1
    rewrite(folder, splits=manifest["splits"])
    with pytest.raises(CorpusError, match=r"validation.bin has 24 bytes, its manifest says 26"):
        Corpus.open(folder)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "sealed.bin", "token_bytes.bin", "tokenizer.json"])
def test_verify_finds_a_changed_file_of_the_same_size(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(CorpusError, match=f"{name} is not the file"):
        Corpus.open(folder, verify=True)


@pytest.mark.parametrize(("index", "length"), [(0, 0), (9, -1), (BOS, 1)])
def test_byte_lengths_that_would_bend_the_metric_are_refused(folder, index, length):
    lengths = np.fromfile(folder / "token_bytes.bin", dtype="<i4")
    lengths[index] = length
    lengths.tofile(folder / "token_bytes.bin")
    with pytest.raises(CorpusError, match="0 for BOS"):
        Corpus.open(folder)

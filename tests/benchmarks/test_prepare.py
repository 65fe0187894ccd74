"""Text becomes tokens once, exactly, the same everywhere; and a corpus is whole or not there."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from benchmarks.gpt.prepare import prepare
from benchmarks.gpt.sources import SITE_LONGEST, open_source
from inner.corpus import SPLITS, Corpus
from traces.errors import CorpusError, MachineError

ROOT = Path(__file__).parents[2]
VOCAB = 300


def texts(count: int, seed: int = 0, words: int = 260) -> list[str]:
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopé日", k=rng.randint(2, 9))) for _ in range(500)]
    return [" ".join(rng.choices(vocabulary, k=words)) + "\n" for _ in range(count)]


TEXTS = texts(200)


def write(folder: Path, contents: list[str], name: Callable[[int], str] = "{:04d}.txt".format) -> Path:
    folder.mkdir()
    for number, text in enumerate(contents):
        (folder / name(number)).write_text(text, encoding="utf-8")
    return folder


def make(folder: Path, cache: Path, vocab_size: int = VOCAB) -> Corpus:
    return Corpus.open(prepare(f"dir:{folder}", vocab_size, cache), verify=True)


def decoded(corpus: Corpus, split: str) -> list[str]:
    """The documents of a split, in order."""
    tokenizer = Tokenizer.from_file(str(corpus.folder / "tokenizer.json"))
    ids = corpus.tokens(split)
    assert ids[0] == corpus.bos
    pieces = np.split(ids, np.flatnonzero(ids == corpus.bos))[1:]
    return [tokenizer.decode(piece[1:].tolist()) for piece in pieces]


def hashes(corpus: Corpus) -> dict[str, str]:
    """Of everything in the corpus but its name."""
    return {split: corpus.manifest["splits"][split]["sha256"] for split in SPLITS} | {
        key: corpus.manifest[key] for key in ("tokenizer_sha256", "token_bytes_sha256")
    }


def left(cache: Path) -> list[str]:
    """What the cache holds, locks aside."""
    return sorted(p.name for p in cache.glob("*/*") if p.suffix != ".lock")


def run(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A process that has `prepare` at hand, and its arguments in `argv`."""
    head = (
        "import os, sys; from pathlib import Path; from benchmarks.gpt.prepare import main, prepare; argv = sys.argv; "
    )
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("texts") / "plain", TEXTS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def corpus(folder: Path, cache: Path) -> Corpus:
    return make(folder, cache)


def test_every_document_is_in_exactly_one_split_word_for_word(corpus):
    assert sorted(text for split in SPLITS for text in decoded(corpus, split)) == sorted(TEXTS)


def test_the_shares_are_near_90_5_5(tmp_path):
    corpus = make(write(tmp_path / "many", texts(2000, words=30)), tmp_path / "cache")
    counts = {split: corpus.manifest["splits"][split]["documents"] for split in SPLITS}
    assert sum(counts.values()) == 2000
    # Three standard deviations of a binomial count. The documents are fixed, so this holds always or never.
    assert abs(counts["train"] - 1800) < 40
    assert abs(counts["validation"] - 100) < 30
    assert abs(counts["sealed"] - 100) < 30


def test_the_counts_of_the_manifest_are_those_of_the_files(corpus):
    for split in SPLITS:
        entry, documents, ids = corpus.manifest["splits"][split], decoded(corpus, split), corpus.tokens(split)
        assert entry["tokens"] == len(ids)
        assert entry["documents"] == len(documents)
        assert entry["bytes"] == sum(len(text.encode()) for text in documents) == corpus.token_bytes[ids].sum()
    assert len(corpus.token_bytes) == corpus.vocab_size == VOCAB
    files = {"manifest.json", "tokenizer.json", "token_bytes.bin", *(f"{split}.bin" for split in SPLITS)}
    assert {path.name for path in corpus.folder.iterdir()} == files


def test_a_second_call_is_instant_and_does_nothing(folder, cache, corpus):
    corpus.folder.with_name(corpus.folder.name + ".lock").unlink()
    before = sorted(cache.rglob("*"))
    lines: list[str] = []
    took = []
    for _ in range(3):
        started = time.perf_counter()
        assert prepare(f"dir:{folder}", VOCAB, cache, lines.append) == corpus.folder
        took.append(time.perf_counter() - started)
    assert min(took) < 0.1
    assert lines == []
    assert sorted(cache.rglob("*")) == before  # not even a lock: a cache that is read-only will do


def test_the_same_documents_give_the_same_corpus_whatever_their_files(corpus, tmp_path):
    backwards = write(tmp_path / "backwards", TEXTS, lambda n: f"{9999 - n}.txt")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "a.jsonl").write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS[:70]) + "\n")
    pq.write_table(pa.table({"n": range(70), "text": TEXTS[70:140]}), rows / "b.parquet", row_group_size=11)
    (rows / "deeper").mkdir()
    for number, text in enumerate(TEXTS[140:]):
        (rows / "deeper" / f"{number}.txt").write_text(text, encoding="utf-8")
    (rows / "picture.png").write_bytes(b"\x89PNG")
    for other in (backwards, rows):
        assert hashes(make(other, tmp_path / "cache")) == hashes(corpus)


def test_one_thread_gives_the_same_corpus_as_many(folder, corpus, tmp_path):
    one = os.environ | {"RAYON_NUM_THREADS": "1"}
    process = run("prepare(argv[1], 300, Path(argv[2]))", f"dir:{folder}", tmp_path, env=one)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert hashes(make(folder, tmp_path)) == hashes(corpus)


def test_duplicates_are_dropped_and_counted(corpus, tmp_path):
    doubled = make(write(tmp_path / "doubled", TEXTS + TEXTS[:30]), tmp_path / "cache")
    assert hashes(doubled) == hashes(corpus)
    assert doubled.manifest["duplicates"] == 30


def test_the_tokenizer_never_sees_what_is_held_out(corpus, tmp_path):
    def held_out(of: Corpus) -> set[str]:
        return {text for split in ("validation", "sealed") for text in decoded(of, split)}

    other = held_out(make(write(tmp_path / "other", texts(400, seed=7)), tmp_path / "cache"))
    same_training = [text for text in TEXTS if text not in held_out(corpus)]
    mixed = make(write(tmp_path / "mixed", same_training + sorted(other)), tmp_path / "cache")
    assert held_out(mixed) == other
    for part in ("train", "tokenizer_sha256"):
        assert hashes(mixed)[part] == hashes(corpus)[part]


def test_a_document_keeps_its_split_when_others_come(corpus, tmp_path):
    larger = make(write(tmp_path / "larger", TEXTS + texts(100, seed=9)), tmp_path / "cache")
    for split in SPLITS:
        assert set(decoded(corpus, split)) <= set(decoded(larger, split))


def test_documents_are_not_in_the_order_of_their_files(corpus):
    order = [TEXTS.index(text) for text in decoded(corpus, "train")]
    assert order != sorted(order)


def test_a_changed_file_makes_another_corpus(tmp_path):
    folder = write(tmp_path / "texts", TEXTS)
    first = make(folder, tmp_path / "cache")
    (folder / "0000.txt").write_text("another text of this length".ljust(len(TEXTS[0])), encoding="utf-8")
    second = make(folder, tmp_path / "cache")
    assert first.folder != second.folder
    assert hashes(first) != hashes(second)


def test_what_is_not_text_is_left_out_and_counted(corpus, tmp_path):
    mixed = write(tmp_path / "mixed", TEXTS)
    (mixed / "latin.txt").write_bytes("naïve".encode("latin-1"))
    (mixed / "zeros.txt").write_bytes(b"some\0thing")
    (mixed / "blank.txt").write_text(" \n\t")
    (mixed / "half.jsonl").write_text('{"text": "half a character \\ud800"}\n')
    opened = make(mixed, tmp_path / "cache")
    assert hashes(opened) == hashes(corpus)
    assert opened.manifest["not_text"] == 3


def test_the_cache_folder_can_be_set_in_the_environment(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path / "here"))
    assert prepare(f"dir:{folder}", VOCAB).is_relative_to(tmp_path / "here")


# Whole or not there


@pytest.mark.parametrize("stage", ["reading", "training", "encoding train", "encoding sealed"])
def test_killed_in_the_middle_nothing_is_there_and_the_next_call_succeeds(folder, corpus, tmp_path, stage):
    code = "prepare(argv[1], 300, Path(argv[2]), lambda line: line.startswith(argv[3]) and os.kill(os.getpid(), 9))"
    process = run(code, f"dir:{folder}", tmp_path, stage)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (remains,) = left(tmp_path)
    assert remains.endswith(".building")
    assert hashes(make(folder, tmp_path)) == hashes(corpus)
    assert left(tmp_path) == [remains.removesuffix(".building")]


@pytest.mark.parametrize("damage", ["cut", "missing", "no manifest"])
def test_a_damaged_corpus_is_made_again(folder, corpus, tmp_path, damage):
    made = make(folder, tmp_path).folder
    if damage == "cut":
        os.truncate(made / "train.bin", 1000)
    else:
        (made / ("sealed.bin" if damage == "missing" else "manifest.json")).unlink()
    assert make(folder, tmp_path).folder == made
    assert hashes(Corpus.open(made, verify=True)) == hashes(corpus)


def test_of_two_at_once_one_makes_it_and_both_have_it(folder, corpus, tmp_path):
    code = "print(prepare(argv[1], 300, Path(argv[2]), lambda line: print('made')))"
    processes = [run(code, f"dir:{folder}", tmp_path) for _ in range(2)]
    outputs = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted("made" in lines for lines in outputs) == [False, True]
    assert len({lines[-1] for lines in outputs}) == 1
    assert hashes(Corpus.open(Path(outputs[0][-1]), verify=True)) == hashes(corpus)


def test_without_room_one_line_says_so_and_nothing_is_left(folder, tmp_path):
    # A limit on the size of files makes the kernel refuse the write, as a full disk does.
    code = "argv[1:1] = ['--vocab-size', '300', '--source']; sys.exit(main())"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    process = run(code, f"dir:{folder}", "--cache", tmp_path, preexec_fn=limit)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert len(errors.splitlines()) == 1
    assert "cannot write" in errors and "File too large" in errors and "BILEVEL_CACHE" in errors
    assert left(tmp_path) == []


def test_a_cache_that_cannot_be_a_folder_is_named(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"cannot write .*file.* Not a directory; .*BILEVEL_CACHE"):
        prepare(f"dir:{folder}", VOCAB, tmp_path / "file")


# Bad input: one line that says what and what to do


def bad_row(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"text": "fine"}\n{"text": \n')


def row_without_text(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"content": "fine"}\n')


def table_without_text(folder: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), folder / "table.parquet")


def table_of_numbers(folder: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), folder / "table.parquet")


def torn_table(folder: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS}), folder / "table.parquet")
    os.truncate(folder / "table.parquet", 1000)


def binary(folder: Path) -> None:
    (folder / "a.txt").write_bytes(random.Random(3).randbytes(1000))


def blank(folder: Path) -> None:
    (folder / "a.txt").write_text(" \n")


def one(folder: Path) -> None:
    (folder / "a.txt").write_text("one text " * 100_000)


def few(folder: Path) -> None:
    for number, text in enumerate(TEXTS[:100]):
        (folder / f"{number}.txt").write_text(text[:200])


def monotonous(folder: Path) -> None:
    for number in range(200):
        (folder / f"{number}.txt").write_text("a b " * (1000 + number))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda folder: None, r"has no .txt, .jsonl or .parquet file"),
        (bad_row, r"rows.jsonl, line 2: not JSON"),
        (row_without_text, r'rows.jsonl, line 1: no field "text"'),
        (table_without_text, r'table.parquet has no column "text", only body, n'),
        (table_of_numbers, r'the column "text" holds int64, not strings'),
        (torn_table, r"table.parquet is not a Parquet file"),
        (binary, r"holds no text: 1 files or rows are not UTF-8"),
        (blank, r"holds no text: nothing in it but white space"),
        (one, r"has 1 different documents, .* none of them falls to \w+: give at least 100"),
        (few, r"its \w+ split has [\d,]+ tokens and needs 4,096: give about [\d,]+ bytes"),
        (monotonous, r"text for 2\d\d different tokens only, not 300: give more text or a smaller vocab_size"),
    ],
)
def test_a_corpus_that_cannot_be_is_refused_in_one_line(tmp_path, content, message):
    folder = tmp_path / "texts"
    folder.mkdir()
    content(folder)
    with pytest.raises(CorpusError, match=message) as caught:
        prepare(f"dir:{folder}", VOCAB, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert left(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("source", "vocab_size", "message"),
    [
        ("dir:/nowhere", VOCAB, r"no folder /nowhere"),
        ("dir:", VOCAB, r"unknown source 'dir:': use stdlib, site"),
        ("wikipedia", VOCAB, r"unknown source 'wikipedia'"),
        ("climbmix:0", VOCAB, r"climbmix:0 must name 1 to 6542"),
        ("climbmix:x", VOCAB, r"climbmix:x must name"),
        ("stdlib", 256, r"vocab_size must be 257 to 65536, got 256"),
        ("stdlib", 65537, r"got 65537"),
    ],
)
def test_what_cannot_be_asked_for_is_named(tmp_path, source, vocab_size, message):
    with pytest.raises(CorpusError, match=message):
        prepare(source, vocab_size, tmp_path)


def test_the_command_prints_the_folder_and_the_counts_and_its_errors_in_one_line(folder, cache, corpus):
    command = [sys.executable, "-m", "benchmarks.gpt.prepare", "--vocab-size", "300", "--cache", str(cache), "--source"]
    done = subprocess.run([*command, f"dir:{folder}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == str(corpus.folder)
    assert f"{len(corpus.tokens('train')):,} tokens" in done.stdout
    failed = subprocess.run([*command, "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("error: unknown source 'nothing'") and failed.stderr.count("\n") == 1


# The other sources


def test_stdlib_is_the_standard_library_without_its_tests(tmp_path):
    corpus = Corpus.open(prepare("stdlib", 1024, tmp_path), verify=True)
    files = open_source("stdlib", tmp_path).files(print)
    splits = corpus.manifest["splits"].values()
    assert any(file.path.name == "argparse.py" for file in files)
    assert not any({"test", "tests", "site-packages"} & set(file.path.parts) for file in files)
    empty = sum(not file.path.read_bytes().strip() for file in files)
    found = sum(entry["documents"] for entry in splits) + corpus.manifest["duplicates"] + corpus.manifest["not_text"]
    assert found + empty == len(files)
    assert sum(entry["bytes"] for entry in splits) > 5_000_000


def test_site_is_the_source_and_prose_of_the_installed_packages(tmp_path):
    source = open_source("site", tmp_path)
    files = source.files(print)
    names = {file.path.name for file in files}
    assert {"METADATA", "RECORD"}.isdisjoint(names)
    assert any(file.path.parts[-2:] == ("numpy", "__init__.py") for file in files)
    assert all(file.path.stat().st_size <= SITE_LONGEST for file in files)
    assert sum(file.path.stat().st_size for file in files) > 50_000_000
    assert source.fingerprint == open_source("site", tmp_path).fingerprint
    assert "numpy-" in source.fingerprint


def shards(server, held_out: list[str], *training: list[str]) -> None:
    for number, rows in [(6542, held_out), *enumerate(training)]:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": rows}), sink)
        server.files[f"shard_{number:05d}.parquet"] = sink.getvalue().to_pybytes()


def test_climbmix_trains_on_its_first_shards_and_holds_out_the_last(server, tmp_path):
    held_out, first, second = texts(60, seed=1), texts(60, seed=2), texts(60, seed=3)
    shards(server, held_out, [*first, *held_out[:5]], second, texts(5, seed=4))
    server.checksums = True
    server.faults = [("cut", 5000)]
    folder = prepare("climbmix:2", VOCAB, tmp_path, url=server.url)
    corpus = Corpus.open(folder, verify=True)
    # What is in both stays held out.
    assert sorted(decoded(corpus, "train")) == sorted(first + second)
    assert sorted(decoded(corpus, "validation") + decoded(corpus, "sealed")) == sorted(held_out)
    assert corpus.manifest["duplicates"] == 5
    assert [(entry["name"], entry["checked"]) for entry in corpus.manifest["downloads"]] == [
        ("shard_06542.parquet", "server"),
        ("shard_00000.parquet", "server"),
        ("shard_00001.parquet", "server"),
    ]


def test_climbmix_is_downloaded_once_for_all_vocabularies(server, tmp_path):
    shards(server, texts(60, seed=1), texts(60, seed=2), texts(60, seed=3))
    folders = {prepare("climbmix:1", size, tmp_path, url=server.url + "/") for size in (300, 310, 300)}
    assert len(folders) == 2
    assert sorted(name for name, _ in server.asked) == ["shard_00000.parquet", "shard_06542.parquet"]
    prepare("climbmix:2", VOCAB, tmp_path, url=server.url)
    assert [name for name, _ in server.asked[2:]] == ["shard_00001.parquet"]


def test_climbmix_that_is_refused_leaves_no_corpus(server, tmp_path):
    shards(server, texts(60, seed=1))
    with pytest.raises(CorpusError, match=r"shard_00000.parquet: the server answers 404"):
        prepare("climbmix:1", VOCAB, tmp_path, url=server.url)
    assert not list((tmp_path / "corpora").glob("*/manifest.json"))

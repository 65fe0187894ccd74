"""The record: what is put is there, for whoever may read it, after whatever happened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from traces.errors import BusyError, LabError, MachineError, UserError
from traces.store import Store, connect

Start = Callable[..., subprocess.Popen[str]]

HOLDER = """
    import sys
    from pathlib import Path
    from traces.store import Store
    store = Store.open(Path(sys.argv[1]))
    store.put("setting", name="published", value=1)
    store.publish(force=True)
    store.put("setting", name="put", value=2)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()
"""


def settings_of(lab: Path) -> dict[str, Any]:
    with connect(lab) as reader:
        rows = reader.rows("SELECT * FROM setting WHERE name <> 'schema_version'")
    return {row["name"]: row["value"] for row in rows}


# --- putting and reading


def test_put_updates_only_the_given_columns(store: Store) -> None:
    store.put("experiment", run="r", index=0, step="proposed", hypothesis="why", change={"constants": {"A": 1}})
    store.put("experiment", run="r", index=0, step="measured", score=1.5)
    (row,) = store.rows("SELECT * FROM experiment")
    assert (row["step"], row["score"], row["hypothesis"]) == ("measured", 1.5, "why")
    assert row["change"] == {"constants": {"A": 1}}
    assert row["inherited"] is False


def test_put_of_only_a_key_leaves_the_row(store: Store) -> None:
    store.put("text", hash="h", content="c")
    store.put("text", hash="h")
    assert store.get_text("h") == "c"


def test_put_updates_a_row_that_an_earlier_writer_put(lab: Path) -> None:
    for step in ("proposed", "decided"):
        with Store.open(lab) as store:
            store.put("experiment", run="r", index=0, step=step)
    with Store.open(lab) as store:
        store.put("experiment", run="r", index=0, score=1.0)  # lacks a column that a new row must have
        assert store.rows("SELECT step, score FROM experiment") == [{"step": "decided", "score": 1.0}]
    with Store.open(lab) as store, store.transaction():
        store.put("experiment", run="r", index=0, step="measured")
        store.put("experiment", run="r", index=1, step="proposed")
    with Store.open(lab) as store:
        assert [row["step"] for row in store.rows("FROM experiment ORDER BY index")] == ["measured", "proposed"]


def test_put_of_a_new_row_that_lacks_a_column_says_so(store: Store) -> None:
    with pytest.raises(duckdb.ConstraintException, match="step"):
        store.put("experiment", run="r", index=0, score=1.0)


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("experiments", {"run": "r"}, "no table experiments: it has curve, experiment"),
        ("experiment", {"run": "r", "index": 0, "scoer": 1.0}, "no column scoer: it has run, index"),
        ("experiment", {"run": "r"}, "lacks index"),
        ("experiment", {"run": "r", "index": None}, "lacks index"),
    ],
)
def test_a_row_that_does_not_fit_names_what_is_wrong(
    store: Store, table: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.put(table, **row)
    with pytest.raises(ValueError, match=message):
        store.put_many(table, [row])


def test_times_are_kept_in_utc(store: Store) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    store.put("experiment", run="r", index=0, step="proposed", proposed=noon, started=noon.replace(tzinfo=None))
    (row,) = store.rows("SELECT proposed, started FROM experiment")
    assert row["proposed"] == noon.astimezone(UTC).replace(tzinfo=None)
    assert row["started"] == noon.replace(tzinfo=None)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
optional_rows = st.fixed_dictionaries(
    {"index": st.integers(0, 5), "step": texts},
    optional={
        "status": st.none() | texts,
        "significant": st.none() | st.booleans(),
        "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
        "change": json_values,
        "moves": json_values,
        "score": st.none() | st.floats(allow_nan=False),
        "proposed": st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)),
    },
)


@pytest.fixture(scope="module")
def open_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("property") / "lab") as store:
        yield store


@settings(max_examples=60, deadline=None)
@given(puts=st.lists(optional_rows, min_size=1, max_size=5), one_by_one=st.booleans(), together=st.booleans())
def test_what_is_put_comes_back(
    open_store: Store, puts: list[dict[str, Any]], one_by_one: bool, together: bool
) -> None:
    """Any sequence of puts leaves what a dictionary of rows would hold."""
    run = f"run-{len(open_store.rows('SELECT DISTINCT run FROM experiment'))}"
    expected: dict[int, dict[str, Any]] = {}
    for row in puts:
        expected[row["index"]] = expected.get(row["index"], {}) | row

    def put_all() -> None:
        for row in puts:
            if one_by_one:
                open_store.put("experiment", run=run, **row)
            else:
                open_store.put_many("experiment", [{"run": run} | row])

    if together:
        with open_store.transaction():
            put_all()
    else:
        put_all()
    found = open_store.rows("SELECT * FROM experiment WHERE run = ? ORDER BY index", run)
    assert [{name: row[name] for name in expected[row["index"]]} for row in found] == [
        expected[index] for index in sorted(expected)
    ]


def test_broken_text_is_kept_as_far_as_it_can_be(store: Store) -> None:
    assert store.get_text(store.text("half a pair: \ud83d")) == "half a pair: ?"
    store.put("setting", name="x", value={"\udc00": ["\ud83d"]})
    assert settings_of_store(store)["x"] == {"?": ["?"]}


def settings_of_store(store: Store) -> dict[str, Any]:
    return {row["name"]: row["value"] for row in store.rows("SELECT * FROM setting")}


def test_a_text_is_stored_once(store: Store) -> None:
    first, again, other = store.text("a" * 1000), store.text("a" * 1000), store.text("b")
    assert first == again != other
    assert store.rows("SELECT count(*) AS n FROM text") == [{"n": 2}]
    with pytest.raises(LabError, match="no text 'nothing'"):
        store.get_text("nothing")


def test_of_many_rows_with_one_key_the_last_counts(store: Store) -> None:
    point = {"run": "r", "experiment": 0, "step": 1, "progress": 0.5}
    store.put_many("curve", [point | {"loss": 3.0}, point | {"loss": 2.0}])
    store.put_many("curve", [])
    assert store.rows("SELECT loss FROM curve") == [{"loss": 2.0}]
    with pytest.raises(ValueError, match="differ in their columns"):
        store.put_many("curve", [point | {"loss": 3.0}, point])


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    store.put("setting", name="before", value=0)
    with pytest.raises(RuntimeError), store.transaction():
        store.put("setting", name="inside", value=1)
        store.put("setting", name="before", value=1)
        store.publish(force=True)
        raise RuntimeError
    store.put("setting", name="after", value=2)
    kept = settings_of_store(store)
    assert {name: kept.get(name) for name in ("before", "inside", "after")} == {"before": 0, "inside": None, "after": 2}


def test_threads_share_the_store(store: Store) -> None:
    def work(thread: int) -> None:
        for i in range(20):
            store.put("setting", name=f"{thread}-{i}", value=i)
            assert store.rows("SELECT value FROM setting WHERE name = ?", f"{thread}-{i}") == [{"value": i}]
            store.publish()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(settings_of_store(store)) == 80 + 1


def test_a_wrong_query_is_one_line(store: Store) -> None:
    store.publish(force=True)
    with connect(store.lab) as reader:
        for sql in ("SELEKT 1", "SELECT nothing\nFROM nowhere", "INSERT INTO setting VALUES ('a', '1')"):
            with pytest.raises(UserError) as caught:
                reader.rows(sql)
            assert "\n" not in str(caught.value)
    assert "a" not in settings_of(store.lab)


# --- one writer


def test_a_second_writer_is_told_who_holds_the_laboratory(lab: Path, process: Start) -> None:
    holder = process(HOLDER, lab)
    assert holder.stdout and holder.stdout.readline() == "ready\n"
    with pytest.raises(BusyError, match=f"process {holder.pid} is writing to"):
        Store.open(lab)
    holder.communicate("")
    Store.open(lab).close()


def test_two_writers_in_one_process_exclude_each_other(store: Store) -> None:
    with pytest.raises(BusyError, match=f"process {os.getpid()} "):
        Store.open(store.lab)


def test_publishing_does_not_open_the_record_to_other_programs(store: Store, process: Start) -> None:
    store.put("setting", name="x", value=1)
    store.publish(force=True)
    other = process("import duckdb, sys; duckdb.connect(sys.argv[1])", store.lab / "bilevel.duckdb")
    _, errors = other.communicate()
    assert "Could not set lock" in errors


def test_a_record_that_another_program_has_open_is_busy(lab: Path, process: Start) -> None:
    Store.open(lab).close()
    source = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    other = process(source, lab / "bilevel.duckdb")
    assert other.stdout and other.stdout.readline() == "ready\n"
    with pytest.raises(BusyError, match="another program"):
        Store.open(lab)


# --- readers


def test_readers_see_what_was_published_while_the_writer_goes_on(lab: Path, process: Start) -> None:
    holder = process(HOLDER, lab)
    assert holder.stdout and holder.stdout.readline() == "ready\n"
    assert settings_of(lab) == {"published": 1}
    holder.communicate("")
    assert settings_of(lab) == {"published": 1, "put": 2}


def test_a_killed_writer_loses_nothing_that_was_put(lab: Path, process: Start) -> None:
    holder = process(HOLDER, lab)
    assert holder.stdout and holder.stdout.readline() == "ready\n"
    holder.kill()
    holder.communicate()
    assert settings_of(lab) == {"published": 1}
    with Store.open(lab, create=False) as store:
        assert settings_of_store(store)["put"] == 2
        assert settings_of(lab) == {"published": 1, "put": 2}


def test_killed_at_any_moment_the_record_holds_what_was_acknowledged(lab: Path, process: Start) -> None:
    source = """
        import sys
        from pathlib import Path
        from traces.store import Store
        with Store.open(Path(sys.argv[1])) as store:
            begin = len(store.rows("SELECT 1 FROM setting"))
            for i in range(100_000):
                store.put("setting", name=f"{begin}-{i}", value=i)
                print(f"{begin}-{i}", flush=True)
                store.publish(force=i % 3 == 0)
    """
    acknowledged: set[str] = set()
    for lines in (1, 4, 7, 12):
        writer = process(source, lab)
        assert writer.stdout
        acknowledged |= {writer.stdout.readline().strip() for _ in range(lines)}
        writer.kill()
        acknowledged |= set(writer.communicate()[0].split())
        settings_of(lab)  # a reader finds a whole snapshot
    with Store.open(lab) as store:
        assert acknowledged <= settings_of_store(store).keys()


def test_a_reader_stays_at_its_moment_and_the_next_one_sees_more(store: Store) -> None:
    store.put("setting", name="x", value=1)
    store.publish(force=True)
    with connect(store.lab) as before:
        store.put("setting", name="x", value=2)
        store.publish(force=True)
        assert before.rows("SELECT value FROM setting WHERE name = 'x'") == [{"value": 1}]
        assert settings_of(store.lab) == {"x": 2}


def test_whoever_reads_while_the_snapshot_is_replaced_finds_a_whole_one(lab: Path, process: Start) -> None:
    source = """
        import sys
        from pathlib import Path
        from traces.store import Store
        with Store.open(Path(sys.argv[1])) as store:
            print("ready", flush=True)
            for i in range(40):
                store.put("setting", name="x", value=i)
                store.publish(force=True)
    """
    writer = process(source, lab)
    assert writer.stdout and writer.stdout.readline() == "ready\n"
    files, seen = {(lab / "snapshot.duckdb").stat().st_ino}, [-1]
    while writer.poll() is None:
        seen.append(settings_of(lab).get("x", -1))
        files.add((lab / "snapshot.duckdb").stat().st_ino)
    assert seen == sorted(seen)
    assert settings_of(lab) == {"x": 39}
    assert len(files) > 1, "a file that is written over shows a reader halves of two"
    assert not list(lab.glob("*.part"))


def test_a_reader_writes_nothing_into_the_laboratory(filled: Store) -> None:
    filled.publish(force=True)

    def state() -> dict[str, tuple[int, int]]:
        return {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in filled.lab.iterdir()}

    before = state()
    with connect(filled.lab) as reader:
        reader.rows("SELECT run, count(*) FROM experiment GROUP BY ALL ORDER BY ALL")
        assert state() == before
    assert state() == before


def test_unforced_publishing_is_rare_and_forced_is_not(store: Store) -> None:
    seen = set()
    for i in range(20):
        store.put("setting", name="x", value=i)
        store.publish()
        seen.add((store.lab / "snapshot.duckdb").stat().st_ino)
    assert len(seen) == 1
    store.publish(force=True)
    assert settings_of(store.lab) == {"x": 19}


# --- what is not a laboratory, or not ours to write to


def test_what_is_no_laboratory_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no laboratory in"):
        connect(tmp_path / "nowhere")
    with pytest.raises(LabError, match="no laboratory in"):
        Store.open(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "file").write_text("hello")
    with pytest.raises(LabError, match="is a file"):
        Store.open(tmp_path / "file")

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "bilevel.duckdb").write_text("hello")
    with pytest.raises(LabError, match="not a laboratory"):
        Store.open(tmp_path / "text")

    (tmp_path / "other").mkdir()
    with duckdb.connect(str(tmp_path / "other" / "bilevel.duckdb")) as connection:
        connection.execute("CREATE TABLE setting (name VARCHAR, value JSON)")
    with pytest.raises(LabError, match="not of a laboratory"):
        Store.open(tmp_path / "other")
    assert (tmp_path / "text" / "bilevel.duckdb").read_text() == "hello"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A folder with this version of `traces` and one migration more."""
    folder = tmp_path / "newer"
    shutil.copytree(Path(traces.__file__).parent, folder / "traces", ignore=shutil.ignore_patterns("__pycache__"))
    numbers = sorted(int(path.name[:4]) for path in (folder / "traces" / "schema").glob("*.sql"))
    following = folder / "traces" / "schema" / f"{numbers[-1] + 1:04d}_mood.sql"
    following.write_text("ALTER TABLE study ADD COLUMN mood VARCHAR; CREATE TABLE mood (name VARCHAR PRIMARY KEY);")
    return folder


def test_an_older_laboratory_opens_upgrades_and_leaves_a_copy(lab: Path, newer: Path, process: Start) -> None:
    with Store.open(lab) as store:
        store.put("setting", name="x", value=1)
    read = """
        import sys
        from pathlib import Path
        from traces.store import connect
        with connect(Path(sys.argv[1])) as reader:
            print(reader.rows("SELECT s.value, count(m.name) AS moods FROM setting s, mood m WHERE s.name = 'x'"
                              " GROUP BY ALL UNION ALL SELECT value, -1 FROM setting WHERE name = 'x'"))
    """
    before = (lab / "bilevel.duckdb").read_bytes()
    out, errors = process(read, lab, cwd=newer).communicate()
    assert (out, errors) == ("[{'value': 1, 'moods': -1}]\n", "")
    assert (lab / "bilevel.duckdb").read_bytes() == before

    write = """
        import sys
        from pathlib import Path
        from traces.store import Store
        with Store.open(Path(sys.argv[1])) as store:
            store.put("mood", name="good")
            print(store.rows("SELECT value FROM setting WHERE name = 'x'"))
    """
    out, errors = process(write, lab, cwd=newer).communicate()
    assert (out, errors) == ("[{'value': 1}]\n", "")
    (copy,) = lab.glob("bilevel.v*.duckdb")
    assert copy.read_bytes() == before

    with pytest.raises(LabError, match="reads up to"):
        Store.open(lab)
    with pytest.raises(LabError, match="reads up to"):
        connect(lab)


def test_a_failing_upgrade_leaves_the_record_as_it_was(lab: Path, newer: Path, process: Start) -> None:
    with Store.open(lab) as store:
        store.put("setting", name="x", value=1)
    (migration,) = (newer / "traces" / "schema").glob("*_mood.sql")
    migration.write_text(migration.read_text() + "; ALTER TABLE nowhere ADD COLUMN x INTEGER;")
    source = "import sys; from pathlib import Path; from traces.store import Store; Store.open(Path(sys.argv[1]))"
    assert process(source, lab, cwd=newer).wait() == 1
    with Store.open(lab) as store:
        assert settings_of_store(store)["x"] == 1
        assert "mood" not in {row["name"] for row in store.rows("SHOW TABLES")}


def test_a_full_disk_is_one_line_and_what_was_put_is_safe(lab: Path, process: Start) -> None:
    source = """
        import json, resource, sys
        from pathlib import Path
        from traces.errors import MachineError
        from traces.store import Store
        store = Store.open(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
        done, errors = [], []
        try:
            for i in range(1000):
                store.put("text", hash=str(i), content=str(i) * 2000)
                done.append(str(i))
        except MachineError as error:
            errors.append(str(error))
        try:
            store.close()
        except MachineError as error:
            errors.append(str(error))
        print(json.dumps([done, errors]))
    """
    out, err = process(source, lab).communicate()
    assert err == ""
    done, errors = json.loads(out)
    assert done and errors
    assert all("\n" not in line and "make room" in line for line in errors)
    with Store.open(lab) as store:
        assert set(done) <= {row["hash"] for row in store.rows("SELECT hash FROM text")}


def test_a_folder_that_may_not_be_written_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # root may write anywhere
        try:
            with pytest.raises(MachineError, match=r"Permission denied.*mend the rights") as caught:
                Store.open(Path(folder) / "lab")
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o755)
        assert "\n" not in str(caught.value)

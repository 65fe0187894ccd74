"""A download is complete and right, or it is not there; what has arrived is not sent again."""

import hashlib
import random
import socket
from pathlib import Path

import pytest

from benchmarks.gpt.download import Fetched, fetch
from traces.errors import CorpusError, MachineError

CONTENT = random.Random(1).randbytes(3_000_000)
OTHER = random.Random(2).randbytes(3_000_000)


def get(server, folder: Path, attempts: int = 4, report=lambda line: None) -> Fetched:
    return fetch(f"{server.url}/shard", folder / "shard", report, attempts=attempts, pause=0.001, timeout=10.0)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def content(server) -> None:
    server.files["shard"] = CONTENT


def test_a_file_arrives_whole_and_is_not_asked_for_again(server, tmp_path):
    first = get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == CONTENT
    assert first == Fetched("shard", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "first download")
    assert left(tmp_path) == {"shard", "shard.json"}
    assert get(server, tmp_path) == first
    assert len(server.asked) == 1


def test_a_cut_connection_is_resumed_where_it_broke(server, tmp_path):
    server.faults = [("cut", 1_000_000), ("cut", 500_000)]
    lines: list[str] = []
    get(server, tmp_path, report=lines.append)
    assert (tmp_path / "shard").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, "bytes=1000000-", "bytes=1500000-"]
    assert server.sent == len(CONTENT)
    assert "broken off after 1,000,000 of 3,000,000 bytes" in lines[0]


def test_a_later_call_goes_on_from_what_an_earlier_one_left(server, tmp_path):
    server.faults = [("cut", 1_000_000)]
    with pytest.raises(MachineError, match="broken off after 1,000,000"):
        get(server, tmp_path, attempts=1)
    assert not (tmp_path / "shard").exists()
    get(server, tmp_path, attempts=1)
    assert (tmp_path / "shard").read_bytes() == CONTENT
    assert server.sent == len(CONTENT)


def test_two_versions_of_a_file_are_never_glued_together(server, tmp_path):
    server.faults = [("cut", 1_000_000)]
    with pytest.raises(MachineError):
        get(server, tmp_path, attempts=1)
    server.files["shard"] = OTHER
    get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == OTHER
    assert left(tmp_path) == {"shard", "shard.json"}


def test_a_server_that_names_no_version_is_asked_for_everything_again(server, tmp_path):
    server.etag = lambda content: None
    server.faults = [("cut", 1_000_000)]
    get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, None]
    assert left(tmp_path) == {"shard", "shard.json"}


def test_a_server_that_cannot_resume_is_understood(server, tmp_path):
    server.ranges = False
    server.faults = [("cut", 1_000_000)]
    get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == CONTENT


def test_a_part_that_was_complete_but_unchecked_is_begun_again(server, tmp_path):
    server.faults = [("cut", 1_000_000)]
    with pytest.raises(MachineError):
        get(server, tmp_path, attempts=1)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(bytes(len(CONTENT)))
    get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_passing_failure_of_the_server_is_tried_again(server, tmp_path, status):
    server.faults = [status]
    get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == CONTENT


def test_a_failure_that_stays_is_given_up_on(server, tmp_path):
    server.faults = [500] * 9
    with pytest.raises(MachineError, match=r"500 .*\(3 attempts\)"):
        get(server, tmp_path, attempts=3)
    assert len(server.asked) == 3


def test_a_refusal_is_not_tried_again(server, tmp_path):
    del server.files["shard"]
    with pytest.raises(CorpusError, match=r"/shard: the server answers 404"):
        get(server, tmp_path)
    assert len(server.asked) == 1


def test_no_server_is_the_networks_fault(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/shard"
        with pytest.raises(MachineError, match=r"no answer .*check the network"):
            fetch(url, tmp_path / "shard", lambda line: None, attempts=2, pause=0.001)


def test_the_checksum_of_a_redirection_is_believed(server, tmp_path):
    server.checksums = True
    assert get(server, tmp_path).checked == "server"


def test_a_wrong_checksum_is_tried_again_from_the_beginning(server, tmp_path):
    server.checksums = True
    server.faults = [("spoil", 0)]
    get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, None]


def test_a_checksum_that_stays_wrong_leaves_nothing_behind(server, tmp_path):
    server.checksums = True
    server.faults = [("spoil", 0)] * 9
    with pytest.raises(CorpusError, match=r"damaged .* SHA-256 .* the server says"):
        get(server, tmp_path)
    assert left(tmp_path) == set()


def test_a_resumed_file_is_checked_as_a_whole(server, tmp_path):
    server.checksums = True
    server.faults = [("cut", 1_000_000)]
    with pytest.raises(MachineError):
        get(server, tmp_path, attempts=1)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(bytes(1_000_000))
    get(server, tmp_path)
    assert (tmp_path / "shard").read_bytes() == CONTENT


def test_a_file_damaged_on_disk_is_downloaded_again(server, tmp_path):
    first = get(server, tmp_path)
    (tmp_path / "shard").write_bytes(bytes(len(CONTENT)))
    assert get(server, tmp_path) == first
    assert (tmp_path / "shard").read_bytes() == CONTENT


def test_without_checksums_a_later_download_must_be_the_first_one_again(server, tmp_path):
    get(server, tmp_path)
    (tmp_path / "shard").unlink()
    server.files["shard"] = OTHER
    with pytest.raises(CorpusError, match="the first download had"):
        get(server, tmp_path)
    assert not (tmp_path / "shard").exists()

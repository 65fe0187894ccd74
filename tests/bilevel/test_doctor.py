"""What this machine can do is found out by trying."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from bilevel.doctor import examine
from bilevel.probe import probe
from inner.sandbox import tier


def test_confinement_in_force_lets_nothing_out():
    found = probe(tier())
    leaks = list(found.leaks())
    assert found.scratch
    # Where there is no bubblewrap there is nothing to confine with, and the probe says what that means.
    assert (leaks == []) == (tier() == "bubblewrap"), leaks


def test_the_probe_sees_what_an_unconfined_process_can_do():
    found = probe("none")
    assert found.connects and found.overfills and found.outlives and found.scratch
    assert found.reads_home is True and found.processes > 2
    assert not found.reads_key  # the environment is clean even then


def test_the_probe_leaves_nothing_behind():
    before = set(os.listdir(Path.home()))
    probe(tier())
    assert set(os.listdir(Path.home())) == before
    assert "BILEVEL_DOCTOR_KEY" not in os.environ


def test_every_part_is_looked_at_and_every_limit_explained(tmp_path):
    findings = {finding.name: finding for finding in examine(tmp_path / "lab")}
    promised = {"python", "torch", "git", "sandbox", "sandbox, tried", "processor", "memory", "disk of the laboratory"}
    assert promised | {"disk of the cache", "corpora", "packages"} <= set(findings)
    assert any(name.startswith("gpu") for name in findings)
    assert all(finding.means for finding in findings.values() if finding.state != "ok")
    assert not (tmp_path / "lab").exists()


def test_doctor_as_json(cli):
    done = cli("doctor", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["ok"] is True
    assert all(set(finding) == {"name", "state", "found", "means"} for finding in told["findings"])
    assert {finding["state"] for finding in told["findings"]} <= {"ok", "warn"}


def test_doctor_fails_where_git_is_missing(cli, tmp_path):
    (tmp_path / "bin").mkdir()
    if bwrap := shutil.which("bwrap"):
        (tmp_path / "bin" / "bwrap").symlink_to(bwrap)
    done = cli("doctor", environment={"PATH": str(tmp_path / "bin")})
    assert done.returncode == 2
    line = next(line for line in done.stdout.splitlines() if " git " in line)
    assert line.startswith("fail") and "not found" in line


def test_a_damaged_corpus_is_named(tmp_path, monkeypatch):
    broken = tmp_path / "corpora" / "stdlib-1024-abc"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text("{}")
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path))
    corpora = next(finding for finding in examine(tmp_path) if finding.name == "corpora")
    assert corpora.state == "warn" and "stdlib-1024-abc" in corpora.found

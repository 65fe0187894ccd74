"""Git keeps every experiment, whoever's machine it is on and whenever it is interrupted."""

import os
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import pytest

from inner.edit import diff
from inner.workspace import Workspace
from traces.errors import LabError, MachineError

SURFACE = '"""é"""\r\nDEPTH = 8\n\ttabs = 1'
WHEN = datetime(2026, 1, 2, 3, 4, 5)
EXTRA = {"program.md": "Be bold.\n"}


def git(folder: Path, *arguments: str) -> str:
    """What a user gets who types git in that folder."""
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def new(folder: Path) -> Workspace:
    return Workspace.create(folder, "train.py", SURFACE, EXTRA, WHEN)


def commit(workspace: Workspace, index: int, parent: int = 0) -> str:
    sha = workspace.experiments()[parent]
    return workspace.commit(index, sha, surface(index), f"experiment {index}: deeper\n\nWhy not?", WHEN)


def surface(index: int) -> str:
    return SURFACE.replace("8", str(8 + index))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Experiments 1 to 5, each on top of the last keep; 2 and 3 were kept."""
    made = new(tmp_path / "run")
    for index, parent in enumerate([0, 0, 2, 3, 3], 1):
        sha = commit(made, index, parent)
        if index in (2, 3):
            made.keep(sha)
    return made


def test_the_baseline_is_experiment_0_on_main_with_every_file(tmp_path: Path) -> None:
    made = new(tmp_path / "run")
    assert git(made.folder, "rev-parse", "main", "HEAD", "refs/kept/0").split() == [made.experiments()[0]] * 3
    assert (made.folder / "train.py").read_bytes() == SURFACE.encode()
    assert (made.folder / "program.md").read_text() == "Be bold.\n"
    assert git(made.folder, "status", "--porcelain") == ""
    assert git(made.folder, "branch", "--show-current") == "main"


def test_an_experiment_is_one_commit_on_its_parent_and_changes_only_the_surface(workspace: Workspace) -> None:
    shas = workspace.experiments()
    assert list(shas) == [0, 1, 2, 3, 4, 5]
    for index, parent in {1: 0, 2: 0, 3: 2, 4: 3, 5: 3}.items():
        assert git(workspace.folder, "rev-parse", f"{shas[index]}^") == shas[parent]
        assert git(workspace.folder, "diff", "--name-only", shas[parent], shas[index]) == "train.py"
        assert workspace.surface(shas[index]) == surface(index)


def test_any_experiment_kept_or_not_can_be_checked_out_by_its_number(workspace: Workspace) -> None:
    for index in range(6):
        git(workspace.folder, "checkout", f"refs/experiments/{index}")
        assert (workspace.folder / "train.py").read_bytes() == surface(index).encode()
        assert (workspace.folder / "program.md").read_text() == "Be bold.\n"
        assert git(workspace.folder, "status", "--porcelain") == ""


def test_a_commit_leaves_the_branch_and_the_work_tree_alone(workspace: Workspace) -> None:
    before = git(workspace.folder, "rev-parse", "main")
    (workspace.folder / "train.py").write_text("half an idea")
    commit(workspace, 6, 3)
    assert git(workspace.folder, "rev-parse", "main") == before
    assert (workspace.folder / "train.py").read_text() == "half an idea"
    assert git(workspace.folder, "status", "--porcelain").split() == ["M", "train.py"]


def test_a_keep_moves_the_branch_and_the_work_tree_and_may_be_repeated(workspace: Workspace) -> None:
    sha = workspace.experiments()[5]
    for _ in range(2):
        workspace.keep(sha)
        assert git(workspace.folder, "rev-parse", "main", "HEAD", "refs/kept/5").split() == [sha] * 3
        assert (workspace.folder / "train.py").read_bytes() == surface(5).encode()
        assert git(workspace.folder, "status", "--porcelain") == ""


def test_a_keep_may_leave_the_line_of_the_branch(workspace: Workspace) -> None:
    sha = workspace.experiments()[1]  # its parent is the baseline, the branch is two experiments on
    workspace.keep(sha)
    assert git(workspace.folder, "rev-parse", "main") == sha
    assert git(workspace.folder, "status", "--porcelain") == ""


def test_a_user_who_looks_at_an_experiment_is_not_moved_away(workspace: Workspace) -> None:
    git(workspace.folder, "checkout", "refs/experiments/1")
    workspace.keep(workspace.experiments()[5])
    assert (workspace.folder / "train.py").read_bytes() == surface(1).encode()
    assert git(workspace.folder, "rev-parse", "main") == workspace.experiments()[5]


def test_what_a_user_wrote_into_another_file_stays(workspace: Workspace) -> None:
    (workspace.folder / "program.md").write_text("Be careful.\n")
    workspace.keep(workspace.experiments()[5])
    assert (workspace.folder / "program.md").read_text() == "Be careful.\n"


def test_the_same_step_gives_the_same_commit_anywhere_and_again(workspace: Workspace, tmp_path: Path) -> None:
    other = new(tmp_path / "elsewhere")
    assert other.experiments()[0] == workspace.experiments()[0]
    assert commit(other, 1) == workspace.experiments()[1]
    assert commit(workspace, 4, 3) == workspace.experiments()[4]


def test_nothing_of_the_users_git_has_an_influence(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, hooks = tmp_path / "home", tmp_path / "hooks"
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/attributes").write_text("*.py text eol=crlf ident filter=shout\n")
    hooks.mkdir()
    for name in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[user]\n\tname = Somebody\n[core]\n\thooksPath = {hooks}\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n"
        f"[init]\n\tdefaultBranch = trunk\n\ttemplateDir = {tmp_path}/template\n[i18n]\n\tcommitEncoding = latin1\n"
        "[filter \"shout\"]\n\tclean = tr a-z A-Z\n\tsmudge = tr a-z A-Z\n\trequired = true\n"
        "[this file is broken\n"
    )  # fmt: skip
    (tmp_path / "template/hooks").mkdir(parents=True)
    for name, value in {
        "HOME": home,
        "XDG_CONFIG_HOME": home / ".config",
        "GIT_DIR": tmp_path / "other",
        "GIT_WORK_TREE": tmp_path,
        "GIT_INDEX_FILE": tmp_path / "index",
        "GIT_OBJECT_DIRECTORY": tmp_path / "objects",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "Somebody",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.hooksPath",
        "GIT_CONFIG_VALUE_0": hooks,
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1",  # git's own switch: as if the folder were another user's
    }.items():
        monkeypatch.setenv(name, str(value))
    other = new(tmp_path / "elsewhere")
    for index, parent in enumerate([0, 0, 2, 3, 3], 1):
        commit(other, index, parent)
    other.keep(other.experiments()[3])
    fork = other.fork(tmp_path / "fork", 4)
    monkeypatch.undo()
    assert other.experiments() == workspace.experiments()
    for made, index in ((other, 3), (fork, 3)):
        assert (made.folder / "train.py").read_bytes() == surface(index).encode()
        assert git(made.folder, "status", "--porcelain") == ""
        assert not (made.folder / ".git/hooks").exists()
        assert set(git(made.folder, "log", "--walk-reflogs", "--format=%gn", "main").splitlines()) == {"bilevel"}
    assert not (tmp_path / "hooked").exists()


def test_a_users_checkout_runs_no_hooks_and_no_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Workspace.create(tmp_path / "run", "train.py", "A = 1\n", {}, WHEN)
    made.commit(1, made.experiments()[0], "A = 2\n", "experiment 1", WHEN)
    hook = tmp_path / "hooks/post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    (tmp_path / "attributes").write_text("*.py text eol=crlf\n")
    (tmp_path / ".gitconfig").write_text(
        f"[core]\n\tautocrlf = true\n\thooksPath = {hook.parent}\n\tattributesFile = {tmp_path}/attributes\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    git(made.folder, "checkout", "refs/experiments/1")
    assert (made.folder / "train.py").read_bytes() == b"A = 2\n"
    assert not (tmp_path / "hooked").exists()


def test_a_folder_inside_another_repository_is_one_of_its_own(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    made = new(tmp_path / "lab/run")
    commit(made, 1)
    assert git(made.folder, "rev-parse", "--show-toplevel") == str(made.folder)
    assert git(tmp_path, "for-each-ref") == ""


def test_it_works_without_a_home_and_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    made = new(tmp_path / "run")
    made.keep(commit(made, 1))
    assert made.surface("main") == surface(1)


def test_creating_again_opens_what_is_there(workspace: Workspace) -> None:
    again = new(workspace.folder)
    assert again.experiments() == workspace.experiments()
    assert git(workspace.folder, "rev-parse", "main") == workspace.experiments()[3]


def test_opening_finds_the_surface_by_itself(tmp_path: Path) -> None:
    Workspace.create(tmp_path / "run", 'my "train".py', SURFACE, {}, WHEN)
    opened = Workspace.open(tmp_path / "run")
    assert opened.surface_name == 'my "train".py'
    assert opened.surface("main") == SURFACE


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path, workspace: Workspace) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("x")
    git(tmp_path, "init", "-q", "plain")
    for act, message in (
        (lambda: new(tmp_path / "mine"), "mine is not the workspace of a run"),
        (lambda: Workspace.open(tmp_path / "absent"), "absent is not the workspace of a run"),
        (lambda: Workspace.open(tmp_path / "plain"), "plain is a git repository, but not the workspace of a run"),
        (lambda: Workspace.create(workspace.folder, "train.py", "A = 1\n", {}, WHEN), "workspace of another run"),
        (lambda: workspace.fork(tmp_path / "mine", 2), "mine is not the workspace of a run"),
        (lambda: workspace.fork(tmp_path / "fork", 7), "has 6 experiments, cannot fork after 7"),
        (lambda: workspace.keep("0" * 40), "is no experiment of"),
    ):
        with pytest.raises(LabError, match=message):
            act()
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_an_experiment_that_was_proposed_anew_takes_its_number(workspace: Workspace) -> None:
    sha = workspace.commit(5, workspace.experiments()[0], "A = 1\n", "another idea", WHEN)
    assert workspace.experiments()[5] == sha
    assert workspace.surface(sha) == "A = 1\n"


def test_a_fork_begins_with_the_first_experiments_at_the_last_keep_of_them(
    workspace: Workspace, tmp_path: Path
) -> None:
    before = git(workspace.folder, "for-each-ref")
    fork = workspace.fork(tmp_path / "fork", 3)
    assert fork.experiments() == {i: sha for i, sha in workspace.experiments().items() if i < 3}
    assert git(fork.folder, "rev-parse", "main") == workspace.experiments()[2]
    assert git(fork.folder, "for-each-ref", "--format=%(refname)", "refs/kept").split() == [
        "refs/kept/0",
        "refs/kept/2",
    ]
    assert (fork.folder / "train.py").read_bytes() == surface(2).encode()
    assert (fork.folder / "program.md").read_text() == "Be bold.\n"
    assert git(fork.folder, "status", "--porcelain") == ""
    fork.keep(commit(fork, 3, 1))
    assert git(workspace.folder, "for-each-ref") == before


def test_forking_again_opens_the_fork_that_went_on(workspace: Workspace, tmp_path: Path) -> None:
    fork = workspace.fork(tmp_path / "fork", 3)
    commit(fork, 3, 1)
    assert workspace.fork(tmp_path / "fork", 3).experiments() == fork.experiments()


def test_a_repository_that_a_user_packed_still_works(workspace: Workspace, tmp_path: Path) -> None:
    git(workspace.folder, "gc", "-q", "--prune=now")
    assert workspace.surface(workspace.experiments()[1]) == surface(1)
    workspace.keep(commit(workspace, 6, 5))
    assert workspace.fork(tmp_path / "fork", 7).experiments() == workspace.experiments()
    git(tmp_path / "fork", "fsck", "--strict")


def test_the_diff_is_the_edit(workspace: Workspace) -> None:
    shas = workspace.experiments()
    assert workspace.diff(shas[3]) == diff(surface(2), surface(3), "train.py")
    assert workspace.diff(shas[0]) == ""


@pytest.mark.parametrize("message", ["", "é\n\n\n  odd\t\r\n", "a\0b", "data 3\nabc", "\ud800"])
def test_any_message_is_taken(tmp_path: Path, message: str) -> None:
    made = new(tmp_path / "run")
    sha = made.commit(1, made.experiments()[0], "A = 1\n", message, WHEN)
    assert made.surface(sha) == "A = 1\n"
    git(made.folder, "fsck", "--strict")


def test_what_a_kill_left_behind_is_no_obstacle(workspace: Workspace, tmp_path: Path) -> None:
    locks = ["HEAD", "index.next", "refs/heads/main", "refs/experiments/6", "refs/kept/6"]
    for name in locks:
        (workspace.folder / f".git/{name}.lock").write_text("")
    workspace.keep(commit(workspace, 6, 3))
    assert git(workspace.folder, "status", "--porcelain") == ""
    (tmp_path / ".half.part/.git").mkdir(parents=True)
    assert new(tmp_path / "half").surface("main") == SURFACE


LOOP = """
import sys
from pathlib import Path
from tests_workspace import WHEN, commit, new
made = new(Path(sys.argv[1]))
for index in range(1, 500):
    made.keep(commit(made, index, index - 1))
    print(index, flush=True)
"""


def test_a_run_killed_at_any_point_goes_on_to_the_same_commits(tmp_path: Path) -> None:
    (tmp_path / "tests_workspace.py").write_bytes(Path(__file__).read_bytes())
    whole, folder = new(tmp_path / "whole"), tmp_path / "run"
    for index in range(1, 13):
        whole.keep(commit(whole, index, index - 1))
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    for reached in (1, 4, 9):
        command = [sys.executable, "-c", LOOP, str(folder)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
        ) as loop:
            assert loop.stdout is not None
            for line in loop.stdout:
                if int(line) >= reached:
                    loop.kill()  # no handler runs: what git and Python were doing stops where it is
                    break
        resumed = Workspace.open(folder)
        done = len(resumed.experiments())
        assert resumed.experiments().items() <= whole_to(whole, done).items()
        resumed.keep(commit(resumed, done, done - 1))
        git(folder, "fsck", "--strict")
        assert git(folder, "status", "--porcelain") == ""


def whole_to(whole: Workspace, count: int) -> dict[int, str]:
    """The commits of an undisturbed run, as far as the other one came."""
    for index in range(len(whole.experiments()), count + 1):
        whole.keep(commit(whole, index, index - 1))
    return whole.experiments()


def test_runs_in_threads_do_not_meet(tmp_path: Path) -> None:
    made: dict[int, dict[int, str]] = {}

    def go(number: int) -> None:
        workspace = new(tmp_path / f"run{number}")
        for index in range(1, 8):
            workspace.keep(commit(workspace, index, index - 1))
        made[number] = workspace.experiments()

    threads = [threading.Thread(target=go, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6
    assert all(shas == made[0] for shas in made.values())


def test_without_git_one_line_says_so(tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for act in (lambda: new(tmp_path / "other"), workspace.experiments, lambda: Workspace.open(workspace.folder)):
        with pytest.raises(MachineError, match=r"^git is not installed: install it"):
            act()
    assert not (tmp_path / "other").exists()


def test_it_can_be_imported_without_git(tmp_path: Path) -> None:
    code = "import inner.workspace as w, pathlib; w.Workspace.open(pathlib.Path('lab'))"
    (tmp_path / "lab/.git").mkdir(parents=True)
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].startswith("traces.errors.MachineError: git is not installed")


def test_a_disk_that_takes_no_more_is_named_and_loses_nothing(workspace: Workspace, tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path; from inner.workspace import Workspace; from datetime import datetime\n"
        "w = Workspace.open(Path(sys.argv[1])); w.commit(6, w.experiments()[0], 'A = 1', '', datetime(2026, 1, 1))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, str(workspace.folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].startswith("traces.errors.MachineError: git fast-import")
    assert list(workspace.experiments()) == [0, 1, 2, 3, 4, 5]
    git(workspace.folder, "fsck", "--strict")

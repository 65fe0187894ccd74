"""A run's git repository: one commit and one ref an experiment, kept or not, and a branch that stands at the last keep.

    refs/experiments/<n>    experiment n, on top of the experiment whose surface it changed; 0 is the baseline
    refs/kept/<n>           the same commit, if it was kept
    refs/heads/main         the last keep; the work tree shows it

Any experiment is one `git checkout refs/experiments/<n>` away. The same experiment gives the same commit, whoever runs
the step, whenever, and however often: nothing of it comes from the clock, the user or the configuration of git.

Only one process may write to a workspace, and one thread at a time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE

# GitPython otherwise refuses to be imported where there is no git, before anyone could say so in a line.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

from git.cmd import Git
from git.exc import GitCommandNotFound

from inner.edit import diff
from traces.errors import LabError, MachineError

MAIN = "refs/heads/main"
EXPERIMENTS = "refs/experiments/"
KEPT = "refs/kept/"

# Added to the config of every repository, so that the user's own cannot change what a checkout writes or what runs.
_CONFIG = """\
[core]
	hooksPath = /dev/null
	attributesFile = /dev/null
	autocrlf = false
[commit]
	gpgSign = false
[gc]
	auto = 0
[bilevel]
	surface = "{}"
"""


class Workspace:
    """One repository.

    Attributes:
        folder: the work tree.
        surface_name: file name of the surface in it.
    """

    def __init__(self, folder: Path, surface_name: str) -> None:
        """For `create`, `open` and `fork`, which see to it that the repository is there."""
        self.folder = folder.absolute()
        self.surface_name = surface_name
        self._git = _git(self.folder)

    @classmethod
    def create(
        cls, folder: Path, surface_name: str, surface: str, extra: Mapping[str, str], when: datetime
    ) -> Workspace:
        """A new repository with the baseline as experiment 0, kept; it appears whole or not at all.

        If `folder` already is the workspace of this very baseline, as after a kill, it is opened and nothing changes.

        Args:
            folder: must not hold anything else.
            surface_name: file name of the surface.
            surface: the baseline.
            extra: other files by name, such as the program; they are in every commit.
            when: date of the commit, UTC.

        Raises:
            LabError: `folder` holds something else.
            MachineError: there is no git, no space, or no right to write.
        """
        if folder.exists():
            found = cls.open(folder)
            if found.surface_name != surface_name or found.surface(f"{EXPERIMENTS}0") != surface:
                raise LabError(f"{folder} is the workspace of another run: give this one a folder of its own")
            return found
        with _whole(folder) as part:
            new = cls._init(part, surface_name)
            files = {**extra, surface_name: surface}
            baseline = new._import(f"{EXPERIMENTS}0", None, files, "experiment 0: baseline", when)
            new._start([(0, baseline)], {0})
        return cls(folder, surface_name)

    @classmethod
    def open(cls, folder: Path) -> Workspace:
        """The workspace that `create` or `fork` made.

        Raises:
            LabError: there is none.
            MachineError: there is no git.
        """
        if not (folder / ".git").is_dir():
            raise LabError(f"{folder} is not the workspace of a run: it has no repository")
        name = _run(_git(folder.absolute()), "config", "--default", "", "--get", "bilevel.surface").decode()[:-1]
        if not name:
            raise LabError(f"{folder} is a git repository, but not the workspace of a run")
        return cls(folder, name)

    def commit(self, index: int, parent: str, surface: str, message: str, when: datetime) -> str:
        """Commits an experiment, kept or not, without touching the branch or the work tree.

        Args:
            index: of the experiment.
            parent: the commit whose surface was changed.
            surface: the text after the change.
            message: first a subject line; what follows is the body.
            when: when the experiment was proposed, UTC.

        Returns:
            The commit, 40 hexadecimal digits: the same for the same arguments.
        """
        return self._import(f"{EXPERIMENTS}{index}", parent, {self.surface_name: surface}, message, when)

    def keep(self, commit: str) -> None:
        """Moves the branch to an experiment's commit, and the work tree with it; a second call changes nothing.

        A user who has checked out something else, to look at it, keeps it: then only the branch moves.
        """
        index = next((i for i, sha in self.experiments().items() if sha == commit), None)
        if index is None:
            raise LabError(f"{commit} is no experiment of {self.folder}: commit it before it is kept")
        self._move({f"{KEPT}{index}": commit, MAIN: commit})
        if (self.folder / ".git/HEAD").read_text() == f"ref: {MAIN}\n":
            self._show(commit)

    def fork(self, folder: Path, upto: int) -> Workspace:
        """A workspace of its own that begins with the experiments 0 to `upto` - 1 of this one.

        Its branch stands at the last of them that was kept. The commits are the same; this workspace stays as it is.

        Args:
            folder: must not hold anything else; the fork that is already there is opened, as after a kill.
            upto: at least 1.

        Raises:
            LabError: `folder` holds something else, or this workspace has fewer experiments.
            MachineError: there is no space, or no right to write.
        """
        chosen = [(i, sha) for i, sha in self.experiments().items() if i < upto]
        if upto < 1 or len(chosen) < upto:
            raise LabError(f"{self.folder} has {len(self.experiments())} experiments, cannot fork after {upto}")
        if folder.exists():
            found = Workspace.open(folder)
            if list(found.experiments().items())[:upto] != chosen:
                raise LabError(f"{folder} is not a fork of {self.folder}: give the fork a folder of its own")
            return found
        with _whole(folder) as part:
            new = self._init(part, self.surface_name)
            shutil.copytree(
                self.folder / ".git/objects",
                part / ".git/objects",
                ignore=shutil.ignore_patterns("tmp_*"),
                dirs_exist_ok=True,
            )
            new._start(chosen, self._refs(KEPT).keys())
        return Workspace(folder, self.surface_name)

    def experiments(self) -> dict[int, str]:
        """The commit of each experiment, by index, in order."""
        return self._refs(EXPERIMENTS)

    def surface(self, commit: str) -> str:
        """The surface at a commit, or at a ref."""
        return self._run("cat-file", "blob", f"{commit}:{self.surface_name}").decode()

    def diff(self, commit: str) -> str:
        """What an experiment changed in the surface, as a unified diff; empty for the baseline."""
        parents = self._run("rev-list", "--parents", "--max-count=1", commit).decode().split()[1:]
        return diff(self.surface(parents[0]), self.surface(commit), self.surface_name) if parents else ""

    @classmethod
    def _init(cls, folder: Path, surface_name: str) -> Workspace:
        new = cls(folder, surface_name)
        new._run("init", "--quiet", "--initial-branch=main", "--template=", "--object-format=sha1")
        with (folder / ".git/config").open("a", encoding="utf-8") as file:
            file.write(_CONFIG.format(surface_name.replace("\\", "\\\\").replace('"', '\\"')))
        return new

    def _start(self, experiments: list[tuple[int, str]], kept: Iterable[int]) -> None:
        """Sets the refs of a new repository and fills its work tree."""
        refs = {f"{EXPERIMENTS}{i}": sha for i, sha in experiments}
        refs |= {f"{KEPT}{i}": sha for i, sha in experiments if i in kept}
        last = max(i for i, _ in experiments if i in kept)
        self._move(refs | {MAIN: dict(experiments)[last]})
        self._run("read-tree", "--reset", "-u", MAIN)

    def _import(self, ref: str, parent: str | None, files: Mapping[str, str], message: str, when: datetime) -> str:
        # One process writes the blobs, the tree and the commit and sets the ref last: a kill leaves all or nothing.
        seconds = int(when.replace(tzinfo=UTC).timestamp())
        who = f"bilevel <bilevel@localhost> {seconds} +0000"
        lines: list[bytes] = [
            f"commit {ref}\nmark :1\nauthor {who}\ncommitter {who}".encode(),
            _data(message.replace("\0", "�")),
            *([f"from {parent}".encode()] if parent else []),
        ]
        for name, text in files.items():
            lines += [f"M 100644 inline {name}".encode(), _data(text)]
        lines += [b"get-mark :1", b"done", b""]
        self._unlock(ref)
        # --force: a step that runs again with another message or time may replace its own ref.
        options = ("--quiet", "--force", "--done", "--date-format=raw")
        return self._run("fast-import", *options, stdin=b"\n".join(lines)).decode().strip()

    def _move(self, refs: Mapping[str, str]) -> None:
        self._unlock("HEAD", *refs)
        stdin = "".join(f"update {ref} {sha}\n" for ref, sha in refs.items())
        self._run("update-ref", "-m", "bilevel", "--stdin", stdin=stdin.encode())

    def _show(self, commit: str) -> None:
        # Only the surface is written: what a person changed in other files of the work tree stays as it is.
        with _writing(self.folder):
            new = self.folder / ".git/surface.next"
            new.write_bytes(self.surface(commit).encode())
            new.replace(self.folder / self.surface_name)
            # A second index, moved over the first: no lock of git's can be left behind in the user's way.
            index = self.folder / ".git/index.next"
            index.with_name("index.next.lock").unlink(missing_ok=True)
            with self._git.custom_environment(GIT_INDEX_FILE=str(index)):
                self._run("read-tree", commit)
            index.replace(self.folder / ".git/index")

    def _refs(self, prefix: str) -> dict[int, str]:
        listed = self._run("for-each-ref", "--format=%(objectname) %(refname)", prefix).decode().splitlines()
        pairs = (line.split(" ", 1) for line in listed)
        return dict(sorted((int(ref.removeprefix(prefix)), sha) for sha, ref in pairs))

    def _unlock(self, *refs: str) -> None:
        # We are the only writer of these refs, so a lock on one was left by a process that was killed.
        for ref in refs:
            (self.folder / f".git/{ref}.lock").unlink(missing_ok=True)

    def _run(self, command: str, *arguments: str, stdin: bytes = b"") -> bytes:
        return _run(self._git, command, *arguments, stdin=stdin)


def _git(folder: Path) -> Git:
    git = Git(folder)
    repository = folder / ".git"
    # Everything named: no search through the folders above, no question of who owns them, and nothing inherited from
    # a hook, a script or a configuration that this process was started from.
    git.update_environment(
        GIT_DIR=str(repository),
        GIT_COMMON_DIR=str(repository),
        GIT_WORK_TREE=str(folder),
        GIT_INDEX_FILE=str(repository / "index"),
        GIT_OBJECT_DIRECTORY=str(repository / "objects"),
        GIT_ALTERNATE_OBJECT_DIRECTORIES="",
        GIT_NAMESPACE="",
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_PARAMETERS="",
        GIT_CONFIG_COUNT="0",
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_COMMITTER_NAME="bilevel",
        GIT_COMMITTER_EMAIL="bilevel@localhost",
    )
    return git


def _run(git: Git, command: str, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        process = getattr(git, command.replace("-", "_"))(*arguments, istream=PIPE, as_process=True)
        output, said = process.communicate(stdin)
    except GitCommandNotFound:
        raise MachineError("git is not installed: install it (apt install git, brew install git)") from None
    except OSError as error:
        raise MachineError(f"git {command} could not run in {git.working_dir}: {error}") from error
    if process.returncode:
        lines = said.decode(errors="replace").splitlines() or [f"exit status {process.returncode}"]
        why = next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[-1])
        raise MachineError(f"git {command} failed in {git.working_dir}: {why}")
    return bytes(output)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name when the block ends; what an earlier kill left of it goes first."""
    part = folder.with_name(f".{folder.name}.part")
    with _writing(folder):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            yield part
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(f"{folder} cannot be written: {error.strerror or error}") from error


def _data(text: str) -> bytes:
    raw = text.encode(errors="replace")
    return b"data %d\n%b" % (len(raw), raw)

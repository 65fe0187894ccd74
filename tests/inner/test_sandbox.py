"""What a process may do in its sandbox: the tests need bubblewrap, and say so where it is missing."""

import json
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import venv
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest

from inner.sandbox import spawn, tier
from inner.seccomp import threads_only

TIERS = ["bubblewrap", "none"]
PYTHON = ["-P", "-s", "-S", "-c"]


def test_this_machine_has_bubblewrap():
    assert tier() == "bubblewrap", "install bubblewrap: what confines an experiment is tested with it"


@contextmanager
def confined(code, where="bubblewrap", *arguments, **options):
    process = spawn([*PYTHON, code, *map(str, arguments)], tier=where, **options)
    try:
        yield process
    finally:
        process.kill()


def said(code, where="bubblewrap", *arguments, **options):
    """What a program printed, as JSON, once it has ended."""
    with confined(code, where, *arguments, **options) as process:
        printed = process.process.stdout.read().decode()
    try:
        return json.loads(printed)
    except ValueError:
        pytest.fail(f"not JSON: {printed}")


def tried(*statements, where="bubblewrap", **options):
    """The names of the errors that statements raised, each by itself; `None` where one went through."""
    code = (
        "import json, os, sys, socket\nfound = []\nfor line in json.loads(sys.argv[1]):\n    try:\n"
        "        exec(line); found.append(None)\n    except BaseException as error:\n"
        "        found.append(type(error).__name__)\nprint(json.dumps(found))"
    )
    return said(code, where, json.dumps(statements), **options)


def line_of(process, seconds=60):
    """The next line that a process prints."""
    assert select.select([process.process.stdout], [], [], seconds)[0], "it printed nothing"
    return process.process.stdout.readline().decode().strip()


def ended(pid, seconds=10):
    """Whether a process is gone, or is only waited for, within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def family(pid):
    """All that descends from a process, by the numbers of this machine."""
    found, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children = [int(child) for child in (thread / "children").read_text().split()]
            found += children
            waiting += children
    return found


# What is out of reach.


def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outside, inside = (
            tried(f"socket.create_connection(('127.0.0.1', {port}), 5)", where=where)
            for where in ("none", "bubblewrap")
        )
    assert outside == [None]
    assert inside == ["ConnectionRefusedError"]  # its own loopback, where nobody listens
    assert said("import socket, json; print(json.dumps([name for _, name in socket.if_nameindex()]))") == ["lo"]


def test_an_abstract_socket_of_this_machine_is_out_of_reach():
    name = f"bilevel-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        assert tried(f"socket.socket(socket.AF_UNIX).connect('\\0{name}')") == ["ConnectionRefusedError"]


def test_files_of_the_user_are_not_there(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("seen")
    in_home = Path.home() / f".bilevel-test-{os.getpid()}"
    in_home.write_text("seen")
    try:
        read = [f"open({str(path)!r}).read()" for path in (secret, in_home, __file__, "/etc/passwd", "/etc/hostname")]
        assert tried(*read) == ["FileNotFoundError"] * len(read)
        assert tried(read[0], where="none") == [None]
    finally:
        in_home.unlink()


def test_what_is_given_can_be_read_and_not_written(tmp_path):
    given = tmp_path / "given.txt"
    given.write_text("words")
    beside = tmp_path / "beside.txt"
    beside.write_text("words")
    found = tried(
        f"assert open({str(given)!r}).read() == 'words'",
        f"open({str(given)!r}, 'a')",
        f"open({str(beside)!r})",
        readonly=[given],
    )
    assert found == [None, "OSError", "FileNotFoundError"]


@pytest.mark.parametrize("where", TIERS)
def test_the_environment_holds_nothing_of_the_users(where, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    environment = said("import os, json; print(json.dumps(dict(os.environ)))", where, variables={"GIVEN": "yes"})
    assert "secret" not in environment.values()
    assert environment["GIVEN"] == "yes"
    assert environment["PATH"] == "/usr/bin:/bin"
    inherited = set(environment) & set(os.environ) - {"PATH", "HOME", "LANG", "TMPDIR"}
    assert not {name for name in inherited if environment[name] == os.environ[name]} - {
        "PWD", "LC_CTYPE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
    }  # fmt: skip


@pytest.mark.parametrize("where", TIERS)
def test_a_set_has_the_same_order_in_every_process(where):
    code = "import json; print(json.dumps(list({str(i) for i in range(50)})))"
    assert said(code, where) == said(code, where)


def test_other_processes_are_not_there():
    pids = said("import os, json; print(json.dumps([int(p) for p in os.listdir('/proc') if p.isdigit()]))")
    assert len(pids) <= 3
    code = "import os, json; print(json.dumps(open('/proc/1/cmdline').read().split('\\0')[0]))"
    assert Path(said(code)).name == "bwrap"
    assert tried(f"os.kill({os.getpid()}, 0)") == ["ProcessLookupError"]


def test_it_has_no_capabilities():
    code = (
        "import json; lines = open('/proc/self/status').read().splitlines();"
        "print(json.dumps([l.split()[1] for l in lines if l.startswith('Cap') and not l.startswith('CapBnd')]))"
    )
    assert {int(capabilities, 16) for capabilities in said(code)} == {0}
    assert tried("os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0))", "os.chroot('/tmp')") == ["PermissionError"] * 2


def test_the_kernels_settings_cannot_be_written():
    """Not even by root, whom the kernel asks for no capability here: one of them names a program that it runs."""
    settings = ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/self/oom_score_adj"]
    assert tried(*(f"os.open({path!r}, os.O_WRONLY)" for path in settings)) == ["OSError"] * len(settings)


def test_nothing_but_its_own_folder_can_be_written():
    code = """
import json, os
folders = {line.split()[4] for line in open("/proc/self/mountinfo")}
folders |= {"/", "/etc", "/usr/bin", "/dev/shm", os.path.dirname(os.__file__)}
writable = []
for folder in sorted(filter(os.path.isdir, folders)):
    try:
        with open(os.path.join(folder, "written"), "w") as file:
            file.write("x")
        writable.append(folder)
        os.remove(os.path.join(folder, "written"))
    except OSError:
        pass
print(json.dumps(writable))
"""
    assert said(code) == ["/tmp"]
    assert said(code, packages=False) == ["/tmp"]


@pytest.mark.parametrize("size", [1, 3])
def test_its_folder_has_a_size(size):
    code = """
import json, os
written = 0
try:
    with open("/tmp/file", "wb", buffering=0) as file:
        while written < 64 * 2**20:
            written += file.write(b"x" * 2**16)
    error = None
except OSError as caught:
    error = caught.errno
print(json.dumps([written, error]))
"""
    written, error = said(code, scratch_mib=size)
    assert error == 28
    assert size * 2**20 - 2**17 <= written <= size * 2**20


@pytest.mark.parametrize("where", TIERS)
def test_it_begins_in_an_empty_folder_that_is_gone_afterwards(where):
    code = "import os, json; open('file', 'w').close(); print(json.dumps([os.getcwd(), os.listdir('.')]))"
    with confined(code, where) as process:
        folder, files = json.loads(process.process.stdout.read())
        # Where the interpreter itself lies in /tmp, so does the place that it is mounted at.
        assert set(files) - {Path(sys.prefix).parts[2]} == {"file"}
        assert where == "bubblewrap" or Path(folder).exists()
    assert not Path(folder, "file").exists()
    assert where == "bubblewrap" or not Path(folder).exists()


def test_a_descriptor_that_was_not_given_is_not_there(tmp_path):
    (tmp_path / "file").write_text("x")
    with open(tmp_path / "file") as file, open(tmp_path / "file") as given:
        os.set_inheritable(file.fileno(), True)
        code = f"import os, json; print(json.dumps([os.path.exists(f'/proc/self/fd/{{n}}') for n in ({given.fileno()}, {file.fileno()})]))"  # noqa: E501
        assert said(code, descriptors=[given.fileno()]) == [True, False]


def test_with_a_gpu_a_pool_of_processes_can_be_made_and_its_memory_has_a_size():
    """What compiling needs; the sandbox is that of a GPU task, the GPU itself need not be there."""
    code = """
import concurrent.futures, json
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        found = list(pool.map(abs, [-1]))
    try:
        with open("/dev/shm/file", "wb", buffering=0) as file:
            for _ in range(64): file.write(b"x" * 2**16)
    except OSError as error:
        found.append(error.errno)
    print(json.dumps(found))
"""
    assert said(code, gpu=True, scratch_mib=2) == [1, 28]
    written = ["open('/usr/x', 'w')", "open('/dev/x', 'w')", "open('/sys/x', 'w')"]
    assert None not in tried(*written, gpu=True)


@pytest.mark.parametrize("where", TIERS)
def test_it_leaves_no_core_behind(where):
    assert said("import resource, json; print(json.dumps(resource.getrlimit(resource.RLIMIT_CORE)))", where) == [0, 0]


def test_packages_can_be_hidden():
    code = """
import glob, json, sys
roots = {sys.argv[1], sys.base_prefix, "/usr", "/usr/local"}
folders = [path for root in roots for path in glob.glob(root + "/lib*/python3*/*-packages/*/__init__.py")]
print(json.dumps(sorted(path for path in folders)))
"""
    assert numpy.__file__ in said(code, "bubblewrap", sys.prefix)
    assert said(code, "bubblewrap", sys.prefix, packages=False) == []


@pytest.mark.parametrize("where", TIERS)
def test_a_virtual_environment_in_tmp_works(where, tmp_path):
    """The interpreter lies in the folder that the sandbox puts its own in place of."""
    assert tmp_path.is_relative_to("/tmp")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (tmp_path / "beside").write_text("x")
    inside = "import json, os, sys; print(json.dumps([sys.prefix, os.path.exists(sys.argv[1])]))"
    outside = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parents[2])]!r}\nfrom inner.sandbox import spawn\n"
        f"process = spawn(['-c', {inside!r}, {str(tmp_path / 'beside')!r}], tier={where!r})\n"
        "print(process.process.stdout.read().decode()); process.kill()"
    )
    done = subprocess.run([python, "-c", outside], capture_output=True, text=True, cwd="/")
    assert json.loads(done.stdout) == [str(tmp_path / "venv"), where == "none"], done.stderr


# Processes of its own.


CHILD = """
import ctypes, os, subprocess, sys, threading
made = []
thread = threading.Thread(target=lambda: made.append("thread"))
thread.start(); thread.join()
for name, make in (
    ("fork", lambda: os.fork() or os._exit(0)),
    ("vfork", lambda: subprocess.run(["/bin/true"], check=True)),
    ("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {})),
    ("clone", lambda: os._exit(0) if ctypes.CDLL(None).syscall(CLONE, 17, 0, 0, 0, 0) == 0 else None),
):
    try:
        make(); made.append(name)
    except OSError:
        pass
import json
print(json.dumps(made))
"""


def test_processes_of_its_own_can_be_refused_and_threads_stay():
    assert threads_only() is not None, f"no filter for {platform.machine()}"
    code = CHILD.replace("CLONE", {"x86_64": "56", "aarch64": "220"}[platform.machine()])
    assert set(said(code)) == {"thread", "fork", "vfork", "spawn", "clone"}
    refused = said(code, forks=False)
    assert refused[0] == "thread"
    assert not set(refused) & {"fork", "vfork", "spawn"}


def test_a_raw_call_makes_no_process_where_they_are_refused():
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    code = (
        "import ctypes, json, os, sys\nlibrary = ctypes.CDLL(None, use_errno=True)\nfound = []\n"
        f"for number, *rest in (({clone}, 17, 0, 0, 0, 0), (435, 0, 0)):\n"
        "    result = library.syscall(number, *rest)\n    if result == 0: os._exit(0)\n"
        "    found.append([result, ctypes.get_errno()])\nprint(json.dumps(found))"
    )
    assert said(code, forks=False) == [[-1, 1], [-1, 38]]


# Its end.

FAMILY = """
import os, sys, time
def leave():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(60)
        while True: time.sleep(60)
leave()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("where", TIERS)
def test_kill_takes_grandchildren_along_though_they_have_a_session_of_their_own(where):
    with confined(FAMILY, where) as process:
        assert line_of(process) == "ready"
        deadline = time.monotonic() + 20
        while len(relatives := family(process.process.pid)) < (4 if where == "bubblewrap" else 2):
            assert time.monotonic() < deadline, relatives
        process.kill()
        assert all(ended(pid, seconds=0.5) for pid in [*relatives, process.process.pid])


@pytest.mark.parametrize("where", TIERS)
def test_kill_may_come_at_any_moment_and_twice(where):
    for pause in (0, 0.001, 0.003, 0.01, 0.03):
        with confined("import time; time.sleep(600)", where) as process:
            time.sleep(pause)
            relatives = family(process.process.pid)
            process.kill()
            process.kill()
            assert all(ended(pid, seconds=2) for pid in relatives)


@pytest.mark.parametrize("where", TIERS)
def test_kill_comes_to_an_end_however_the_process_ended(where):
    with confined("pass", where) as process:
        process.process.stdout.read()
        while process.exit_status() is None:
            time.sleep(0.01)
        assert process.exit_status() == "exit status 0"
        process.kill()
    assert process.process.returncode == 0


@pytest.mark.parametrize("where", TIERS)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("import os; os.abort()", "killed by SIGABRT"),
    ],
)
def test_the_end_of_a_process_is_told_in_words(where, code, words):
    with confined(code, where) as process:
        process.process.stdout.read()
        deadline = time.monotonic() + 20
        while (status := process.exit_status()) is None:
            assert time.monotonic() < deadline
        assert status == words


PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from inner.sandbox import spawn
process = spawn(["-S", "-c", "import time; print('up', flush=True); time.sleep(600)"], tier="bubblewrap")
process.process.stdout.readline()
print(process.process.pid, flush=True)
time.sleep(600)
"""


def test_it_dies_with_a_parent_that_is_killed():
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", PARENT, root], stdout=subprocess.PIPE)
    try:
        outer = int(parent.stdout.readline())
        relatives = [outer, *family(outer)]
        assert len(relatives) >= 3
        os.kill(parent.pid, signal.SIGKILL)
        assert all(ended(pid) for pid in relatives)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_no_descriptor_and_no_folder_is_left_behind():
    def open_now():
        return len(os.listdir("/proc/self/fd"))

    before = None
    for where in [*TIERS] * 3:
        with confined("pass", where, forks=False) as process:
            process.process.stdout.read()
        assert process.scratch is None or not process.scratch.exists()
        assert before is None or open_now() <= before
        before = open_now()


# What it uses.

BUSY = """
import os, sys, threading, time
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
kind, seconds = sys.argv[1], float(sys.argv[2])
if kind == "thread":
    thread = threading.Thread(target=burn, args=(seconds,)); thread.start(); thread.join()
elif kind == "child":
    if os.fork() == 0:
        burn(seconds); os._exit(0)
    os.wait()
elif kind == "orphan":
    if os.fork() == 0:
        if os.fork() == 0:
            burn(seconds); open("done", "w").close(); os._exit(0)
        os._exit(0)
    os.wait()
    while not os.path.exists("done"): time.sleep(0.01)
elif kind == "living":
    if os.fork() == 0:
        burn(seconds); print("done", flush=True); time.sleep(600)
    time.sleep(600)
else:
    burn(seconds)
print("done", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("where", TIERS)
@pytest.mark.parametrize("kind", ["self", "thread", "child", "living", "orphan"])
def test_the_processor_seconds_of_all_that_it_started_count(where, kind):
    if (where, kind) == ("none", "orphan"):
        return  # it is adopted by the machine's first process: not defended without bubblewrap, and the module says so
    with confined(BUSY, where, kind, 0.4) as process:
        assert line_of(process) == "done"
        seconds, _ = process.usage()
    assert 0.39 <= seconds < 1.5


def test_seconds_are_counted_while_threads_come_and_go():
    """A thread that ends while it is looked at must not hide the seconds of its process."""
    code = """
import threading, time
print("up", flush=True)
end = time.process_time() + 1.0
while time.process_time() < end:
    thread = threading.Thread(target=int); thread.start(); thread.join()
print("done", flush=True)
time.sleep(600)
"""
    with confined(code) as process:
        assert line_of(process) == "up"
        seen = [process.usage()[0]]
        while not select.select([process.process.stdout], [], [], 0)[0]:
            seen.append(process.usage()[0])
    assert seen == sorted(seen)
    assert seen[-1] > 0.5


@pytest.mark.parametrize("where", TIERS)
def test_the_memory_of_all_that_it_started_counts_and_what_they_share_counts_once(where):
    code = """
import os, time
held = b"x" * (100 * 2**20)
if os.fork() == 0:
    more = b"x" * (50 * 2**20)
    print("done", flush=True)
time.sleep(600)
"""
    with confined(code, where) as process:
        assert line_of(process) == "done"
        _, resident = process.usage()
        footprint = process.footprint()
    assert 250 * 2**20 < resident < 400 * 2**20
    assert 150 * 2**20 < footprint < 230 * 2**20


def test_processes_can_be_started_from_many_threads_at_once():
    found = []

    def one(number):
        found.append(said("import json, sys; print(json.dumps(int(sys.argv[1])))", "bubblewrap", number))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(6))


def test_bubblewrap_that_does_not_work_is_not_taken_for_confinement(tmp_path, monkeypatch):
    """A bwrap is installed in many containers that forbid it to do its work."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("bwrap") == str(fake)
    assert tier.__wrapped__() == "none"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert tier.__wrapped__() == "none"

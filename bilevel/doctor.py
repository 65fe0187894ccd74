"""What this machine can do: one line a fact, each with what it means and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from inner.sandbox import tier
from traces.errors import CorpusError

State = Literal["ok", "warn", "fail"]

PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite", "duckdb", "numpy", "scipy", "tokenizers", "openai", "altair")


@dataclass(frozen=True)
class Finding:
    """One fact about this machine.

    Attributes:
        name: what was looked at.
        state: `ok`; `warn`, it works with a limit; `fail`, experiments cannot be trusted or cannot run.
        found: what is there.
        means: what follows from it, and what to do; empty where nothing does.
    """

    name: str
    state: State
    found: str
    means: str = ""


def examine(lab: Path) -> Iterator[Finding]:
    """Looks at everything, the essential first. Each finding comes as it is made.

    Args:
        lab: the laboratory whose disk is meant; it need not exist.
    """
    yield _python()
    yield _torch()
    yield _git()
    yield from _sandbox()
    yield from _gpus()
    yield _processor()
    yield _memory()
    yield _disk("disk of the laboratory", lab.absolute())
    cache = Path(os.environ.get("BILEVEL_CACHE") or _user_cache())
    yield _disk("disk of the cache", cache.absolute())
    yield _corpora(cache)
    yield _versions()


def _python() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    return Finding("python", "ok", found)


def _torch() -> Finding:
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        return Finding("torch", "fail", _first_line(error), "nothing can be trained: pip install torch==2.13.0")
    found = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 11):
        return Finding("torch", "warn", found, "experiments are tested with 2.11 and newer")
    return Finding("torch", "ok", found)


def _git() -> Finding:
    path = shutil.which("git")
    if path is None:
        return Finding(
            "git", "fail", "not found", "every experiment is a commit: install git (Debian: apt install git)"
        )
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("git", "fail", _first_line(error), f"every experiment is a commit: mend {path}")
    return Finding("git", "ok", f"{said.removeprefix('git version ').strip()} ({path})")


def _sandbox() -> Iterator[Finding]:
    from bilevel.probe import probe

    force = tier()
    if force == "none":
        installed = shutil.which("bwrap")
        found = f"none: {installed} does not work here" if installed else "none: bubblewrap is not installed"
        means = "experiments run unconfined, and only code that we wrote may run: "
        means += "allow user namespaces" if installed else "install it (Debian: apt install bubblewrap)"
        yield Finding("sandbox", "warn", found, means)
    else:
        yield Finding("sandbox", "ok", force)
    try:
        result = probe(force)
    except OSError as error:
        yield Finding("sandbox, tried", "fail", f"nothing starts in it: {_first_line(error)}", "no experiment can run")
        return
    leaks = list(result.leaks())
    if leaks:
        state: State = "warn" if force == "none" else "fail"
        means = "expected without bubblewrap" if force == "none" else "do not run code of a model here"
        yield Finding("sandbox, tried", state, "; ".join(leaks), means)
        return
    closed = "no network, no home folder, no keys, no disk but its own /tmp, and its children die with it"
    if result.reads_home is None:
        yield Finding(
            "sandbox, tried", "warn", closed, "the home folder is not ours to write to: reading it was not tried"
        )
    else:
        yield Finding("sandbox, tried", "ok", closed)


def _gpus() -> Iterator[Finding]:
    try:
        import torch
    except Exception:  # said above
        return
    if not torch.cuda.is_available():
        yield Finding(
            "gpu", "warn", "torch sees none", "use --task benchmarks/gpt/mini.toml, which trains on processors"
        )
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"compute capability {properties.major}.{properties.minor}"
        found = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {capability}, CUDA {torch.version.cuda}"
        yield Finding(f"gpu {index}", "ok", found)
    yield _confined_gpu()


def _confined_gpu() -> Finding:
    """Whether torch sees the GPUs from inside the sandbox as well."""
    from inner.sandbox import spawn

    code = "import torch; print('sees', torch.cuda.device_count() and torch.ones(1, device='cuda').item())"
    confined = spawn(["-I", "-c", code], tier=tier(), gpu=True, scratch_mib=64)
    try:
        said, _ = confined.process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        said = b"no answer in 120 s"
    finally:
        confined.kill()
    lines = said.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
    if lines[-1] == "sees 1.0":
        return Finding("gpu in the sandbox", "ok", "seen and working")
    return Finding("gpu in the sandbox", "fail", lines[-1], "GPU tasks cannot run confined: see its message")


def _processor() -> Finding:
    cores, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    found = f"{allowed} of {cores} cores" + (f", limited to {quota:.1f} by the container" if quota else "")
    if quota and quota < allowed:
        return Finding("processor", "warn", found, f"more than --slots {max(1, int(quota))} would slow each other down")
    return Finding("processor", "ok", found, f"{allowed} experiments at a time on a task of one thread")


def _memory() -> Finding:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    total, free = (int(facts[name].split()[0]) / 2**20 for name in ("MemTotal", "MemAvailable"))
    limit = _cgroup("memory.max")
    if limit is not None and limit.isdigit():
        total = min(total, int(limit) / 2**30)
        free = min(free, total - int(_cgroup("memory.current") or 0) / 2**30)
    found = f"{free:.1f} of {total:.1f} GiB free"
    if free < 2:
        return Finding("memory", "warn", found, "an experiment of mini takes about 0.5 GiB: keep --slots low")
    return Finding("memory", "ok", found)


def _disk(name: str, folder: Path) -> Finding:
    here = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        free = shutil.disk_usage(here).free / 2**30
    except OSError as error:
        return Finding(name, "fail", f"{here}: {_first_line(error)}", "name another folder")
    found = f"{free:.1f} GiB free in {folder}"
    if not os.access(here, os.W_OK | os.X_OK):
        return Finding(name, "fail", f"{here} is not ours to write to", "mend its rights or name another folder")
    if free < 0.2:
        return Finding(name, "fail", found, "make room: nothing could be recorded")
    return Finding(name, "warn" if free < 2 else "ok", found, "make room before a long study" if free < 2 else "")


def _corpora(cache: Path) -> Finding:
    from inner.corpus import Corpus

    whole, broken = [], []
    for folder in sorted(cache.glob("corpora/*/")):
        if not (folder / "manifest.json").exists():
            continue
        try:
            corpus = Corpus.open(folder)
            tokens = corpus.manifest["splits"]["train"]["tokens"]
            whole.append(f"{folder.name} ({tokens / 1e6:.1f} M tokens)")
        except CorpusError:
            broken.append(folder.name)
    if broken:
        return Finding("corpora", "warn", f"damaged: {', '.join(broken)}", "`bilevel prepare` makes them again")
    if not whole:
        return Finding("corpora", "ok", "none yet", "the first study prepares its own, or `bilevel prepare`")
    return Finding("corpora", "ok", ", ".join(whole))


def _versions() -> Finding:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("packages", "fail", f"missing: {', '.join(missing)}", "pip install bilevel, or `make demo`")
    return Finding("packages", "ok", ", ".join(found))


def _user_cache() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("bilevel")


def _cpu_quota() -> float | None:
    """Cores that the container may use, `None` if it is not limited."""
    words = (_cgroup("cpu.max") or "max").split()
    return None if words[0] == "max" else int(words[0]) / int(words[1])


def _cgroup(name: str) -> str | None:
    try:
        return Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

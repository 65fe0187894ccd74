"""The arrows between folders point one way, and the worker carries what it needs."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ["traces", "inner", "outer", "benchmarks", "bilevel"]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("folder", ORDER)
def test_no_folder_imports_from_one_above_it(folder):
    above = set(ORDER[ORDER.index(folder) + 1 :])
    found = {(path.name, name) for path in (ROOT / folder).rglob("*.py") for name in imported(path) if name in above}
    assert not found


@pytest.mark.parametrize("carried", ["inner/worker.py", "benchmarks/gpt/train.py"])
def test_what_runs_in_the_sandbox_needs_torch_and_the_standard_library_only(carried):
    assert set(imported(ROOT / carried)) <= sys.stdlib_module_names | {"torch"}


@pytest.mark.parametrize("carried", ["inner/guest.py", "inner/history.py"])
def test_what_a_strategy_sees_needs_the_standard_library_only(carried):
    assert set(imported(ROOT / carried)) <= sys.stdlib_module_names | {"inner"}

"""What a strategy's source must look like before any of it runs.

A first gate: it turns away mistakes, and code that reaches for what a strategy does not need, with a line that says
which. It is no wall. Python has more ways around a reading of its source than anyone can list; the sandbox is the wall.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from types import ModuleType

from inner.syntax import parse

MODULES = frozenset(
    "__future__ collections collections.abc dataclasses inner.history itertools math random statistics typing".split()
)
"""All that a strategy may import."""

LARGEST = 100_000
"""Characters of a strategy's source: a long one is twenty thousand."""

DEEPEST = 80
"""Levels of its syntax tree: the deepest of CPython's own modules has 33."""

_REFUSED = frozenset("breakpoint compile delattr eval exec globals input locals open print setattr vars".split())
_METHODS = {"__init__": 2, "propose": 2, "accept": 2, "observe": 1, "prune": 2}
_OPTIONAL = frozenset({"observe", "prune"})


def parses(source: str) -> str | None:
    """Why the source is not a module of Python, in one line; `None` if it is."""
    if len(source) > LARGEST:
        return f"the source has {len(source)} characters: keep it under {LARGEST}"
    try:
        compile(source, "<strategy>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return f"it cannot be read: {type(error).__name__}: {error}"
    # Whatever walks the tree later may do so by recursion.
    level: list[ast.AST] = [parse(source)]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return f"it is nested deeper than {DEEPEST} levels: take it apart" if level else None


def imports(tree: ast.Module) -> Iterator[str]:
    """What the source imports and may not, one line each."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MODULES:
                    yield f"line {node.lineno}: imports {alias.name}: {_instead()}"
                modules[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module not in MODULES:
                yield f"line {node.lineno}: imports from {module}: {_instead()}"
                continue
            for alias in node.names:
                if module != "__future__" and not _public(module, alias.name):
                    yield f"line {node.lineno}: {module} offers no {alias.name}: import its public names, one by one"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if module in MODULES and not _public(module, node.attr):
                yield f"line {node.lineno}: {module} offers no {node.attr}: use its public names"


def names(tree: ast.Module) -> Iterator[str]:
    """The names that reach out of the module or behind an object's back, one line each."""
    plain = _plain_getattrs(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and (node.id in _REFUSED or (_dunder(node.id) and node.id != "__name__")):
            yield f"line {node.lineno}: {node.id} is not for strategies: leave it out"
        elif isinstance(node, ast.Attribute) and _dunder(node.attr) and node.attr not in ("__init__", "__post_init__"):
            yield f"line {node.lineno}: .{node.attr} reaches behind an object: use its public attributes"
        elif isinstance(node, ast.Name) and node.id == "getattr" and node not in plain:
            yield f"line {node.lineno}: getattr needs the attribute's name, written out and public"


def interface(tree: ast.Module) -> Iterator[str]:
    """What the class `Strategy` lacks, one line each."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Strategy"]
    if len(classes) != 1:
        yield f"the module must define one class Strategy at its top level, found {len(classes)}"
        return
    found = {node.name: node for node in classes[0].body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for name, count in _METHODS.items():
        method = found.get(name)
        if method is None:
            if name not in _OPTIONAL:
                yield f"Strategy must define {name} itself, as inner/strategy.py does"
            continue
        arguments = method.args
        most = len(arguments.posonlyargs + arguments.args) - 1
        least = most - len(arguments.defaults)
        keywords = [a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
        if isinstance(method, ast.AsyncFunctionDef) or method.decorator_list:
            yield f"line {method.lineno}: Strategy.{name} must be a plain method"
        elif not (least <= count and (count <= most or arguments.vararg)) or keywords:
            yield f"line {method.lineno}: Strategy.{name} must take {count} arguments after self"


def _instead() -> str:
    return f"a strategy may import {', '.join(sorted(MODULES - {'__future__'}))}"


def _public(module: str, name: str) -> bool:
    """Whether a module offers a name: not what it happens to have imported, which may be anything."""
    loaded = importlib.import_module(module)
    if (offered := getattr(loaded, "__all__", None)) is not None:
        return name in offered or f"{module}.{name}" in MODULES
    return not name.startswith("_") and hasattr(loaded, name) and not isinstance(getattr(loaded, name), ModuleType)


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _plain_getattrs(tree: ast.Module) -> list[ast.expr]:
    """The uses of `getattr` whose attribute is written out and public."""
    return [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and len(node.args) >= 2
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
        and not node.args[1].value.startswith("_")
    ]

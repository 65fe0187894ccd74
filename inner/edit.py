"""A proposal applied to the surface: constants, search/replace blocks, or a whole file.

Only the literal of a constant is replaced, byte for byte where it stands, so comments, alignment and line endings live
through any number of experiments and a diff shows one line.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from inner.history import Block, Change, Constant, Value
from inner.syntax import parse
from traces.errors import EditError, TaskError

MAX_CHARACTERS = 1_000_000

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
# What ends a line for Python's parser. `str.splitlines` also splits at form feeds and others, which would shift lines.
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LONG = 160  # characters of a line that a message quotes, or that is compared with another


def read_constants(surface: str, name: str = "train.py") -> dict[str, Value]:
    """The constants of a surface: upper-case names that the module binds once, to a literal.

    A list is read as a tuple, and `2**19` as the number it is. A name that is bound again, or to an expression, is no
    constant: changing its first literal would not change what the program uses.

    Args:
        surface: the text.
        name: of the file, for the error.

    Raises:
        TaskError: the surface is not Python.
    """
    try:
        return {name: value for name, (_, value) in _constants(_parse(surface, name)).items()}
    except _NotPython as error:
        raise TaskError(f"{error}: mend the surface") from None


def apply_constants(surface: str, constants: Mapping[str, Value], name: str = "train.py") -> str:
    """The surface with other values for some constants, and every other byte as it was.

    Bounds are not checked here; see `apply`.

    Raises:
        EditError: a name is not a constant of the surface, a value cannot be written as a literal, or the surface is
            not Python.
    """
    try:
        found = _constants(_parse(surface, name))
    except _NotPython as error:
        raise EditError(f"{error}: mend the surface before its constants") from None
    spans: list[tuple[int, int, str]] = []
    starts = [0, *(len(surface[: m.end()].encode()) for m in _NEWLINE.finditer(surface))] if constants else []
    for constant, value in constants.items():
        if constant not in found:
            raise EditError(f"{constant!r:.80} is not a constant of {name}: assign it a literal, once, at module level")
        node, old = found[constant]
        as_list = isinstance(node, ast.List)
        text = _literal(constant, value, as_list)
        if old == value and text == _literal(constant, old, as_list):
            continue
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        spans.append((begin, end, text))
    raw = surface.encode()
    for begin, end, text in sorted(spans, reverse=True):
        raw = raw[:begin] + text.encode() + raw[end:]
    return raw.decode()


def apply(surface: str, change: Change, space: Mapping[str, Constant], name: str = "train.py") -> str:
    """The surface after a change.

    An empty change is the surface as it is. Blocks apply in order, each to what the one before it left.

    Args:
        surface: the text of the parent.
        change: of one kind: constants, or blocks, or a whole text.
        space: the constants that may be set, with their bounds.
        name: of the surface, for messages.

    Raises:
        EditError: the change is of two kinds, sets a constant that is unknown or out of bounds, has a block whose
            search does not occur exactly once, changes nothing, is too long, or leaves something that is not Python.
    """
    kinds = [
        kind
        for kind, given in (
            ("constants", bool(change.constants)),
            ("blocks", bool(change.blocks)),
            ("a whole text", change.text is not None),
        )
        if given
    ]
    if not kinds:
        return surface
    if len(kinds) > 1:
        raise EditError(f"a change has one kind, got {' and '.join(kinds)} for {name}: propose only one of them")
    if change.constants:
        values = {constant: _allowed(constant, value, space, name) for constant, value in change.constants.items()}
        after = apply_constants(surface, values, name)
    elif change.text is not None:
        after = change.text
    else:
        after = surface
        for number, block in enumerate(change.blocks, 1):
            after = _replace(after, block, f"block {number} of {len(change.blocks)}", name)
    if after == surface:
        raise EditError(f"the change by {kinds[0]} changes nothing in {name}: propose something that differs")
    if len(after) > MAX_CHARACTERS:
        raise EditError(f"the change makes {name} {len(after)} characters long: keep it under {MAX_CHARACTERS}")
    try:
        _parse(after, name)
    except _NotPython as error:
        raise EditError(f"the change does not leave Python: {error}") from None
    return after


def diff(before: str, after: str, name: str = "train.py") -> str:
    """A unified diff that `git apply` takes; empty if nothing differs."""
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class _NotPython(Exception):
    """Text that does not parse; the message names the file and the line."""


@lru_cache(maxsize=32)  # of one experiment, the same two surfaces are read several times; trees are only read
def _parse(text: str, name: str) -> ast.Module:
    try:
        return parse(text, name)
    except SyntaxError as error:
        where = f"{name} line {error.lineno}" if error.lineno else name
        raise _NotPython(f"{where}: {error.msg}") from None
    except ValueError as error:  # a null byte, half of a surrogate pair
        raise _NotPython(f"{name} is not text that Python reads: {error}") from None
    except (RecursionError, MemoryError):
        raise _NotPython(f"{name} is nested too deeply for Python") from None


@lru_cache(maxsize=32)
def _constants(tree: ast.Module) -> dict[str, tuple[ast.expr, Value]]:
    bound: dict[str, int] = {}
    for name in _bindings(tree):
        bound[name] = bound.get(name, 0) + 1
    found: dict[str, tuple[ast.expr, Value]] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as node):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as node):
                pass
            case _:
                continue
        value = _read(node)
        if value is not None and bound[name] == 1 and _NAME.fullmatch(name):
            found[name] = node, value
    return found


def _bindings(tree: ast.Module) -> Iterator[str]:
    """Every binding of a name by an assignment in the module's own scope, also inside `if`, `for` or `with`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        if not isinstance(node, _SCOPES):
            waiting.extend(ast.iter_child_nodes(node))


def _read(node: ast.expr) -> Value | None:
    match node:
        case ast.BinOp(ast.Constant(int() as base), ast.Pow(), ast.Constant(int() as power)) if 0 <= power <= 64:
            return int(base**power) if abs(base) <= 1024 else None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return None
    if isinstance(value, list | tuple):
        return tuple(value) if all(type(v) in (int, float) for v in value) else None
    return value if isinstance(value, int | float | str) else None


def _literal(name: str, value: Value, as_list: bool) -> str:
    parts = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(part, int | float | str) for part in parts):
        raise EditError(f"{name} = {value!r:.80} is not a literal: propose a number, a string or a tuple of numbers")
    if any(isinstance(part, float) and not math.isfinite(part) for part in parts):
        raise EditError(f"{name} = {value!r:.80} is not finite: propose a finite number")
    try:
        text = repr(list(parts) if as_list and isinstance(value, tuple) else value)
        return f'"{text[1:-1]}"' if isinstance(value, str) and '"' not in text else text  # the quotes of most surfaces
    except ValueError:  # an int with more digits than Python prints
        raise EditError(f"{name} is a whole number too long to write: propose a smaller one") from None


def _allowed(name: str, value: Value, space: Mapping[str, Constant], file: str) -> Value:
    constant = space.get(name)
    if constant is None:
        raise EditError(f"{name!r:.80} is not in the space of {file}: propose one of {', '.join(space) or 'none'}")
    try:
        allowed, shown = constant.allows(value), f"{value!r:.80}"
    except (ValueError, OverflowError):  # an int with more digits than Python prints or compares with a float
        allowed, shown = False, "a number too long to write"
    if not allowed:
        wanted = (
            f"one of {', '.join(map(repr, constant.choices))}"
            if constant.kind == "choice"
            else f"{'a whole number' if constant.kind == 'int' else 'a number'} from {constant.low} to {constant.high}"
        )
        raise EditError(f"{name} = {shown} is not allowed in {file}: propose {wanted}")
    return float(value) if constant.kind == "float" and isinstance(value, int) else value


def _replace(text: str, block: Block, which: str, name: str) -> str:
    if not block.search:
        raise EditError(f"{which} searches for nothing in {name}: quote the lines to replace")
    first = text.find(block.search)
    if first < 0:
        raise EditError(f"{which} occurs 0 times in {name}: {_nearest(text, block.search)}")
    count, at = 0, first
    while at >= 0:  # overlapping ones count too: which of them is meant is just as open
        count, at = count + 1, text.find(block.search, at + 1)
    if count > 1:
        raise EditError(f"{which} occurs {count} times in {name}: quote more lines around it, so that it occurs once")
    return text[:first] + block.replace + text[first + len(block.search) :]


def _nearest(text: str, search: str) -> str:
    wanted = next((line.strip() for line in search.split("\n") if line.strip()), "")[:_LONG]
    lines = [line.strip()[:_LONG] for line in text.split("\n")[:5000]]
    close = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.5)
    if not close:
        return f"no line is like {wanted!r}; quote the surface exactly"
    return f"the nearest to {wanted!r} is line {lines.index(close[0]) + 1}, {close[0]!r}; quote the surface exactly"


def _lines(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=\n)", text) if part]

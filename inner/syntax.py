"""Python's parser, one caller at a time.

CPython 3.11 counts the parser's recursion in one place for all threads and raises `SystemError` where two meet
(python/cpython issue 106905). Runs are threads here, and every one of them parses surfaces.
"""

from __future__ import annotations

import ast
import threading

_ONE = threading.Lock()


def parse(source: str, name: str = "<unknown>") -> ast.Module:
    """The syntax tree of `source`. Raises as `ast.parse`."""
    with _ONE:
        return ast.parse(source, name)

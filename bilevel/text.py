"""Words and numbers as they are shown to a person.

Hypotheses, details and logs were written by a model or by the code that it wrote. They are data: whatever would move
the cursor, change a colour, set a title or turn the reading direction is taken out before a terminal sees it. What is
printed goes through `rich.text.Text` or with markup off, so that square brackets stay square brackets.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

# A control sequence, a string command that ends on its line, or any other escape. An unfinished string command loses
# its beginning only, so that it cannot hide what follows.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\n\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# Control, format (zero width, right to left), half a surrogate pair, private use, line and paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})

NOTHING = "–"


def plain(text: object) -> str:
    """The text without anything that a terminal would act on; line ends and tabs stay."""
    found = _ESCAPES.sub("", str(text).replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(c for c in found if c in "\n\t" or unicodedata.category(c) not in _UNSEEN)


def one_line(text: object, limit: int | None = None) -> str:
    """`plain` text in one line of at most `limit` characters."""
    found = " ".join(plain(text).split())
    return found if limit is None or len(found) <= limit else f"{found[: limit - 1]}…"


def number(value: Any, signed: bool = False) -> str:
    """A score or a gain in four decimals, if they can show it; a dash for what is not known."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    digits = ".2g" if 0 < size < 1e-4 else ".6g" if size >= 1e5 else ".4f"
    return f"{value:{'+' if signed else ''}{digits}}"


def share(value: Any) -> str:
    """A share as a percentage."""
    return f"{value:.0%}" if isinstance(value, int | float) and math.isfinite(value) else NOTHING


def interval(low: Any, high: Any) -> str:
    """Both ends of an interval, or a dash."""
    both = number(low, signed=True), number(high, signed=True)
    return NOTHING if NOTHING in both else f"[{both[0]}, {both[1]}]"


def duration(seconds: Any) -> str:
    """`1:05` or `2:03:09`; a dash for what is not known."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return NOTHING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def change_of(row: Mapping[str, Any]) -> str:
    """What an experiment changed, from its row: `DEPTH 4 → 6`."""
    moves = [f"{m['constant']} {_value(m['before'])} → {_value(m['after'])}" for m in row.get("moves") or ()]
    change = row.get("change") or {}
    if count := len(change.get("blocks") or ()):
        moves.append(f"{count} block{'s' if count > 1 else ''}")
    if change.get("text") is not None:
        moves.append("the whole file")
    return one_line(", ".join(moves))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return NOTHING if value is None else str(value)


def to_json(value: Any) -> str:
    """Data as JSON for programs: what is not finite is null, times are ISO 8601, what is not ASCII is escaped."""
    return json.dumps(_jsonable(value), indent=2, allow_nan=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Sequence | frozenset | set) and not isinstance(value, bytes | bytearray):
        return [_jsonable(item) for item in value]
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)

"""The measures of being stuck: each one SQL query over the record, with its definition in words beside it.

A query answers one row for every run of the laboratory, `run` and `value`, so it can be pasted into `bilevel sql`.
Every measure is over the *proposals* of a run: its decided experiments without the baseline, those inherited from the
run that it was forked from counted in, since a strategy sees them as its own past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from traces.store import Reader

# What a proposal touches, and what it sets: its constants and their new values in any order, or, where it moves no
# constant, the change itself.
_PROPOSALS = """
WITH proposal AS NOT MATERIALIZED (
    SELECT run, index, status, significant,
           coalesce(moves ->> '$[*].constant', []) AS touched,
           coalesce(moves ->> '$[*].direction', []) AS directions,
           CASE WHEN len(touched) > 0 THEN list_sort(list_zip(touched, moves ->> '$[*].after'))::VARCHAR
                ELSE coalesce(change::VARCHAR, 'unknown ' || index) END AS setting
    FROM experiment
    WHERE status <> 'baseline'  -- nor NULL: not decided yet
)
"""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure: what it means, and the query that answers it for every run."""

    definition: str
    sql: str


def _measure(definition: str, sql: str) -> Measure:
    return Measure(definition, (_PROPOSALS + sql.strip()).strip())


MEASURES: Mapping[str, Measure] = {
    "proposals": _measure(
        "How many proposals there are.",
        "SELECT run, count(*) AS value FROM proposal GROUP BY run",
    ),
    "repeated": _measure(
        "Share of the proposals that set the same constants to the same values as an earlier one.",
        "SELECT run, 1 - count(DISTINCT setting) / count(*) AS value FROM proposal GROUP BY run",
    ),
    "same_constant": _measure(
        "Share of the proposals, without the first, that touch a constant which the one before touched too.",
        """
SELECT run, avg(list_has_any(touched, before)::INTEGER) AS value
FROM (SELECT run, touched, lag(touched) OVER (PARTITION BY run ORDER BY index) AS before FROM proposal)
WHERE before IS NOT NULL
GROUP BY run
""",
    ),
    "entropy": _measure(
        "Entropy of the constants touched, in bits: 0 if it is always the same one.",
        """
SELECT run, entropy(one) AS value
FROM (SELECT run, unnest(touched) AS one FROM proposal)
GROUP BY run
""",
    ),
    "longest_without_keep": _measure(
        "Longest series of proposals of which none was kept.",
        """
SELECT run, max(length) AS value
FROM (
    SELECT run, count(*) FILTER (status <> 'keep') AS length
    FROM (SELECT *, count(*) FILTER (status = 'keep') OVER (PARTITION BY run ORDER BY index) AS keeps FROM proposal)
    GROUP BY run, keeps
)
GROUP BY run
""",
    ),
    "since_significant": _measure(
        "Proposals since the last keep that improved by more than twice the noise floor; all of them if there is none.",
        """
SELECT run, count(*) FILTER (index > coalesce(last_one, -1)) AS value
FROM (SELECT *, max(index) FILTER (status = 'keep' AND significant) OVER (PARTITION BY run) AS last_one FROM proposal)
GROUP BY run
""",
    ),
    "tried": _measure(
        "How many different pairs of a constant and a direction were proposed.",
        """
SELECT run, count(DISTINCT pair) AS value
FROM (SELECT run, unnest(list_zip(touched, directions)) AS pair FROM proposal)
GROUP BY run
""",
    ),
    "keep_rate": _measure(
        "Share of the proposals that were kept.",
        "SELECT run, avg((status = 'keep')::INTEGER) AS value FROM proposal GROUP BY run",
    ),
    "failure_rate": _measure(
        "Share of the proposals that got no score: crashed, timed out, invalid, pruned or refused.",
        """
SELECT run, avg((status IN ('crash', 'timeout', 'invalid', 'pruned', 'refused'))::INTEGER) AS value
FROM proposal
GROUP BY run
""",
    ),
}


@dataclass(frozen=True, slots=True)
class Stagnation:
    """How stuck a run is. `MEASURES` defines the fields; a share of nothing is `None`, a count of nothing 0.

    Attributes:
        entropy: in bits; `None` if no proposal moved a constant.
        evenness: the entropy as a share of the largest possible one, log2 of the size of the space; `None` where the
            entropy is, or where the space has one constant.
        coverage: the pairs of a constant and a direction that were tried, as a share of all possible ones.
    """

    run: str
    proposals: int
    repeated: float | None
    same_constant: float | None
    entropy: float | None
    evenness: float | None
    longest_without_keep: int
    since_significant: int
    coverage: float
    keep_rate: float | None
    failure_rate: float | None


class Searchable(Protocol):
    """A constant of a space: a `choice` is set, a number goes up or down."""

    @property
    def kind(self) -> str:
        """`int`, `float` or `choice`."""


def measure(reader: Reader, run: str, space: int | Mapping[str, Searchable]) -> Stagnation:
    """Measures how stuck a run is.

    Args:
        reader: of the record; the `Store` itself will do.
        run: its id; one without proposals, or that nobody knows, gives counts of 0 and shares of `None`.
        space: the constants that may be searched, or how many numbers there are.
    """
    size = space if isinstance(space, int) else len(space)
    possible = 2 * size if isinstance(space, int) else sum(1 if c.kind == "choice" else 2 for c in space.values())
    if size < 1:
        raise ValueError(f"a space has at least one constant, got {size}")
    found: dict[str, float | None] = {}
    for name, one in MEASURES.items():
        rows = reader.rows(f"SELECT value FROM ({one.sql}) WHERE run = ?", run)  # noqa: S608
        found[name] = rows[0]["value"] if rows else None
    entropy = found["entropy"]
    return Stagnation(
        run=run,
        proposals=int(found["proposals"] or 0),
        repeated=found["repeated"],
        same_constant=found["same_constant"],
        entropy=entropy,
        evenness=None if entropy is None or size == 1 else entropy / math.log2(size),
        longest_without_keep=int(found["longest_without_keep"] or 0),
        since_significant=int(found["since_significant"] or 0),
        coverage=min(1.0, (found["tried"] or 0) / possible),
        keep_rate=found["keep_rate"],
        failure_rate=found["failure_rate"],
    )

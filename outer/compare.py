"""The decision on a candidate: paired trials, an interval, and the proof that the candidate's own code did something.

A pair is two runs from one frozen state, with one seed and one budget: the incumbent's and the candidate's. Their bests
are measured again on fresh seeds; the difference of those means is one observation, positive where the candidate is
better.
"""

from __future__ import annotations

import ast
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from inner.syntax import parse
from outer.check import Check
from traces.stats import detectable, paired

Decision = Literal["adopt", "reject", "indecisive", "invalid", "inert"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs that differ in the strategy only.

    Attributes:
        seed: of both runs; no two pairs of a trial share one.
        incumbent: the confirmed scores of the incumbent's best, one a fresh seed; empty if there is none.
        candidate: those of the candidate's.
    """

    seed: int
    incumbent: tuple[float, ...]
    candidate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the candidate's code did in the trial.

    Attributes:
        new: functions that the incumbent does not have: see `new_functions`.
        ran: functions of the candidate that ran, in any of its runs.
        compared: decisions that the incumbent was asked for too, on the same history.
        differing: those on which the two did not agree.
    """

    new: frozenset[str]
    ran: frozenset[str]
    compared: int
    differing: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided, and on what ground.

    Attributes:
        reason: one sentence.
        gain: mean difference over the usable pairs, in units of the metric; positive: the candidate is better. `None`
            without a usable pair.
        low: lower end of its interval, `None` with fewer than two usable pairs.
        high: upper end.
        confidence: of the interval. A candidate that is no better is adopted in (1 - confidence) / 2 of all trials.
        pairs: how many could be used.
        detectable: the smallest true gain that this many pairs, scattered as these are, would have shown four times
            out of five; `None` with fewer than two, and where they do not scatter.
        compared: decisions compared with the incumbent's.
        differing: how many of them differ.
        idle: new functions that never ran, sorted.
    """

    decision: Decision
    reason: str
    gain: float | None
    low: float | None
    high: float | None
    confidence: float
    pairs: int
    detectable: float | None
    compared: int
    differing: int
    idle: tuple[str, ...]


def difference(pair: Pair, direction: Literal["minimize", "maximize"]) -> float:
    """By how much the candidate is better, on average over fresh seeds; NaN where either has no score."""
    if not _scored(pair.incumbent) or not _scored(pair.candidate):
        return math.nan
    incumbent, candidate = statistics.fmean(pair.incumbent), statistics.fmean(pair.candidate)
    return incumbent - candidate if direction == "minimize" else candidate - incumbent


def _scored(scores: Sequence[float]) -> bool:
    return bool(scores) and all(math.isfinite(score) for score in scores)


def decide(
    pairs: Sequence[Pair],
    evidence: Evidence,
    check: Check,
    confidence: float,
    direction: Literal["minimize", "maximize"] = "minimize",
) -> Verdict:
    """Adopts a candidate whose gain has an interval above 0, rejects one whose interval lies below, else says neither.

    First of all, a candidate that failed its check is `invalid`. One whose new code never ran, one with a new class of
    which nothing ran, and one that changed no decision, is `inert`, whatever it scored: the gain would not be its own.

    A pair in which either arm has no confirmed score gives no difference and is left out. Leaving it out flatters the
    arm that failed; so no verdict is given in favour of an arm that failed more often than the other.

    Raises:
        ValueError: two pairs share a seed: they are not independent.
    """
    if len({pair.seed for pair in pairs}) < len(pairs):
        raise ValueError(f"pairs must have seeds of their own, got {[pair.seed for pair in pairs]}")
    differences = [d for pair in pairs if not math.isnan(d := difference(pair, direction))]
    gain = low = high = smallest = None
    if differences:
        gain = statistics.fmean(differences)
    if len(differences) >= 2:
        interval = paired(differences, confidence)
        low, high = interval.low, interval.high
        if (scatter := statistics.stdev(differences)) > 0:  # without any, nothing is known of what could be seen
            smallest = detectable(scatter, len(differences), confidence)
    decision, reason = _decide(pairs, differences, low, high, evidence, check)
    return Verdict(
        decision=decision,
        reason=reason,
        gain=gain,
        low=low,
        high=high,
        confidence=confidence,
        pairs=len(differences),
        detectable=smallest,
        compared=evidence.compared,
        differing=evidence.differing,
        idle=tuple(sorted(evidence.new - evidence.ran)),
    )


def _decide(
    pairs: Sequence[Pair],
    differences: Sequence[float],
    low: float | None,
    high: float | None,
    evidence: Evidence,
    check: Check,
) -> tuple[Decision, str]:
    if not check.ok:
        return "invalid", f"it failed its check: {check.feedback[0]}"
    if (why := _inert(evidence)) is not None:
        return "inert", why
    if low is None or high is None:
        return "indecisive", f"{len(differences)} of {len(pairs)} pairs have both scores, and an interval needs two"
    # Scores that scatter do not differ by the same amount twice: such pairs are not independent, and their interval,
    # which has no width, says nothing. Most often both arms of every pair ended at the same surface.
    if all(math.isclose(one, differences[0], rel_tol=1e-6) for one in differences):
        return (
            "indecisive",
            f"all {len(differences)} pairs differ by the same {differences[0]:.6g}: there is no scatter",
        )
    if evidence.compared == 0:
        return "indecisive", "no decision was compared with the incumbent's: the gain cannot be laid to the candidate"
    lost = sum(_scored(pair.incumbent) - _scored(pair.candidate) for pair in pairs)
    interval = f"the interval [{low:+.6f}, {high:+.6f}] over {len(differences)} pairs"
    if low > 0 and lost > 0:
        return "indecisive", f"{interval} lies above 0, but the candidate had no score in {lost} pairs more"
    if high < 0 and lost < 0:
        return "indecisive", f"{interval} lies below 0, but the incumbent had no score in {-lost} pairs more"
    if low > 0:
        return "adopt", f"{interval} lies above 0"
    if high < 0:
        return "reject", f"{interval} lies below 0"
    return "indecisive", f"{interval} holds 0"


def _inert(evidence: Evidence) -> str | None:
    """Why the candidate's own code cannot have made a difference, or `None` if it may have."""
    if evidence.new and not evidence.new & evidence.ran:
        return f"none of its {len(evidence.new)} new functions ever ran"
    methods = [function for function in evidence.new if "." in function and "<locals>" not in function]
    for name in sorted({method.partition(".")[0] for method in methods}):
        if not any(function.startswith(f"{name}.") for function in evidence.ran):
            return f"nothing of its class {name} ever ran"
    if evidence.compared and not evidence.differing:
        return f"it decided as the incumbent would have, all {evidence.compared} times"
    return None


def new_functions(incumbent: str, candidate: str) -> frozenset[str]:
    """The qualified names of functions in the candidate's source that the incumbent has not, or has with another body.

    Docstrings, comments and layout make no function new. Names are those that the host records: `Tabu.shape`.

    Raises:
        SyntaxError: either source is not Python.
    """
    old = dict(_functions(_bare(incumbent)))
    return frozenset(name for name, body in _functions(_bare(candidate)) if old.get(name) != body)


def _bare(source: str) -> ast.Module:
    """The tree of a source without the docstrings of its functions."""
    tree = parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return tree


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", ast.dump(child)
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _functions(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

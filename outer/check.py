"""The contract that every strategy must keep before it runs.

First its source is read (`outer.gate`). Then it is rehearsed as the host will run it, in its sandbox: where there is
one experiment to make, on the study's own histories, on nothing but failures, with a model that has no idea. Started
again in the middle of a history, it must decide as before. Last, it must decide something otherwise than the incumbent:
a strategy that does not cannot be better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from inner.history import Change, CurvePoint, History, Proposal, TaskView
from inner.host import Call, Host
from inner.sandbox import Tier
from inner.syntax import parse
from outer import gate
from outer.rehearsal import Rehearsal, only_failures
from traces.errors import StrategyError

CALL_SECONDS = 2.0
"""How long one call may take here. The host gives more: machines are busy when experiments run."""

RECORDED = 40
"""How many decisions of one recorded history are asked for, counted from its end."""

T = TypeVar("T")

_CURVE = tuple(CurvePoint(step, step / 10, 5.0 - step / 10) for step in range(1, 6))

Decision = tuple[int, Change] | bool
"""What decides anything: the parent and the change of a proposal, or whether an experiment is kept."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One clause of the contract: whether it holds, and what was seen."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What a check found.

    Attributes:
        findings: in the order of the contract. All of what the source shows; of the rehearsal, nothing after the first
            clause that does not hold.
        compared: decisions on recorded histories that the incumbent was asked for too.
        differing: how many of them differ.
        seconds: what the check took.
    """

    findings: tuple[Finding, ...]
    compared: int
    differing: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the strategy may run."""
        return all(finding.ok for finding in self.findings)

    @property
    def feedback(self) -> tuple[str, ...]:
        """One line for each clause that does not hold: what a researcher is told."""
        return tuple(f"{finding.name}: {finding.detail}" for finding in self.findings if not finding.ok)


def check(source: str, incumbent: str, task: TaskView, recorded: Sequence[History], tier: Tier, seed: int = 0) -> Check:
    """Holds a strategy to its contract.

    Args:
        source: the candidate.
        incumbent: source of the strategy that it is to replace.
        task: what both would be told of the task.
        recorded: histories of the study, at least one, each with its baseline.
        tier: the confinement to use.
        seed: of the rehearsal.
    """
    began = time.monotonic()
    findings = read(source)
    stage = _Stage(source, incumbent, task, recorded, tier, seed)
    if all(finding.ok for finding in findings):
        findings += stage.findings()
    return Check(tuple(findings), stage.compared, stage.differing, time.monotonic() - began)


def check_from(data: Mapping[str, Any]) -> Check:
    """A `Check` out of the plain data that `dataclasses.asdict` makes of it; other keys are passed over."""
    findings = tuple(Finding(one["name"], one["ok"], one["detail"]) for one in data["findings"])
    return Check(findings, data["compared"], data["differing"], data["seconds"])


def read(source: str) -> list[Finding]:
    """The clauses that the source itself shows; the others only if it is Python."""
    if (why := gate.parses(source)) is not None:
        return [Finding("parses", False, why)]
    tree = parse(source)
    findings = [Finding("parses", True)]
    for name, look in (("imports", gate.imports), ("names", gate.names), ("interface", gate.interface)):
        faults = list(look(tree))
        findings.append(Finding(name, not faults, "; ".join(faults)))
    return findings


@dataclass
class _Stage:
    """Where a candidate is rehearsed, clause by clause. A clause that does not hold raises `StrategyError`.

    Attributes:
        walks: what the candidate decided on each recorded history.
        slowest: seconds of the slowest call so far.
    """

    source: str
    incumbent: str
    task: TaskView
    recorded: Sequence[History]
    tier: Tier
    seed: int
    walks: list[list[Decision]] = field(default_factory=list)
    slowest: float = 0.0
    compared: int = 0
    differing: int = 0

    def findings(self) -> Iterator[Finding]:
        """The clauses one after the other, up to the first that does not hold."""
        clauses: dict[str, Callable[[], object]] = {
            "budget of one": lambda: self.lead(self.source, self.begun(), experiments=2),
            "recorded histories": self.recorded_histories,
            "only failures": lambda: self.lead(self.source, only_failures(self.task, self.begun())),
            "silent model": lambda: self.lead(self.source, self.recorded[0], silent=True),
            "resumes": self.resumes,
            "differs": self.differs,
        }
        for name, clause in clauses.items():
            try:
                seen = clause()
            except StrategyError as error:
                yield Finding(name, False, str(error))
                return
            yield Finding(name, True, seen if isinstance(seen, str) else "")

    def begun(self) -> History:
        """A history of the baseline alone."""
        return replace(self.recorded[0], experiments=self.recorded[0].experiments[:1])

    def recorded_histories(self) -> str:
        """It answers everywhere on the study's own histories."""
        self.walks = [self.lead(self.source, history) for history in self.recorded]
        return f"{sum(map(len, self.walks))} decisions, the slowest in {1000 * self.slowest:.0f} ms"

    def resumes(self) -> None:
        """Started in the middle of a history, it decides as it did when it was there from the beginning."""
        for history, walk in zip(self.recorded, self.walks, strict=True):
            again = self.lead(self.source, history, after=len(history) // 2)
            if again != walk[-len(again) :]:
                raise StrategyError(
                    "started again on the same history and seed it decides otherwise: decide by `history`, by the "
                    "generator that is given, by what `observe` is told, and by nothing else"
                )

    def differs(self) -> str:
        """It decides something otherwise than the incumbent."""
        theirs = [self.lead(self.incumbent, history, forgiving=True) for history in self.recorded]
        pairs = [pair for one, other in zip(self.walks, theirs, strict=True) for pair in zip(one, other, strict=True)]
        self.compared, self.differing = len(pairs), sum(mine != other for mine, other in pairs)
        if not self.differing:
            raise StrategyError(f"changes no decision: on the study's histories all {len(pairs)} are the incumbent's")
        return f"{self.differing} of {self.compared} decisions"

    def lead(
        self,
        source: str,
        history: History,
        experiments: int | None = None,
        after: int = 0,
        silent: bool = False,
        forgiving: bool = False,
    ) -> list[Decision]:
        """Leads a strategy through a history as the loop would, asking after each experiment what it would do next.

        Args:
            source: the strategy.
            history: what others decided; the strategy's own answers have no effect on it.
            experiments: what it is told of the run's budget; the task's, if `None`.
            after: it is only shown so many experiments before it is asked anything.
            silent: the model has no idea.
            forgiving: a failure is taken for a decision to do nothing, as the loop takes it.

        Raises:
            StrategyError: the strategy failed, or proposed what is not valid.
        """
        mercy = suppress(StrategyError) if forgiving else nullcontext()
        decisions: list[Decision] = []
        task = self.task if experiments is None else replace(self.task, experiments=experiments)
        with closing(Host(source, task, self.seed, self.tier, CALL_SECONDS)) as host:
            for length in range(1, len(history) + 1):
                prefix = replace(history, experiments=history.experiments[:length])
                with mercy:
                    host.observe(prefix, prefix[-1])
                if length <= max(after, len(history) - RECORDED):
                    continue
                proposal: Decision = False
                with mercy:
                    proposal = self._propose(host, prefix, silent)
                decisions.append(proposal)
                if host.prunes:
                    with mercy:
                        host.prune(prefix, _CURVE)
                if length < len(history) and history[length].score is not None:
                    kept = False
                    with mercy:
                        kept = self._timed(host.accept(prefix, replace(history[length], status="discard")))
                    decisions.append(kept)
        return decisions

    def _propose(self, host: Host, history: History, silent: bool) -> Decision:
        proposal = self._timed(host.propose(history, Rehearsal(self.task, history, silent)))
        if (why := fault(proposal, self.task, history)) is not None:
            raise StrategyError(f"after {len(history)} experiments it proposes what is not valid: {why}")
        parent = history.best.index if proposal.parent is None else proposal.parent
        return parent, proposal.change

    def _timed(self, call: Call[T]) -> T:
        self.slowest = max(self.slowest, call.seconds)
        return call.answer


def fault(proposal: Proposal, task: TaskView, history: History) -> str | None:
    """Why a proposal could not be run, whatever the surface; `None` if it may be."""
    change = proposal.change
    if proposal.parent is not None and not 0 <= proposal.parent < len(history):
        return f"there is no experiment {proposal.parent} to branch from"
    if bool(change.constants) + bool(change.blocks) + (change.text is not None) > 1:
        return "a change has one kind: constants, or blocks, or a whole text"
    for name, value in change.constants.items():
        if name not in task.constants:
            return f"{name} is not in the space of {task.name}"
        if not task.constants[name].allows(value):
            return f"{name} = {value!r} is not allowed by the space of {task.name}"
    parent = history.best if proposal.parent is None else history[proposal.parent]
    if change.constants and all(parent.constants.get(name) == value for name, value in change.constants.items()):
        return f"it changes nothing: {', '.join(change.constants)} have these values in experiment {parent.index}"
    return None

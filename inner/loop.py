"""The inner loop as a LangGraph graph: propose, run, decide, and again.

The graph's state is a counter. All else is rows, commits and files, and every step is keyed by (run, experiment): a
step that finds its work recorded passes on, so the loop can be killed anywhere and started again from its checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph

from inner import edit
from inner.checkpoint import drive
from inner.history import (
    Change,
    CurvePoint,
    Experiment,
    History,
    Proposal,
    moves_between,
    to_json,
)
from inner.host import Call, Host
from inner.questions import AskedOtherwise, Questions
from inner.record import Bench, experiment_of, history_of, now, put_outcome, row_of
from inner.trial import Job
from inner.workspace import Workspace
from traces.errors import EditError, StrategyError, TaskError


@dataclass(frozen=True)
class Plan:
    """An inner run to be made.

    Attributes:
        run: its id, which is also its folder and its thread of checkpoints.
        arm: what it is in its study: `level1`, `incumbent`, `candidate`.
        seed: of the strategy, of the model's answers, and of every training in it.
        experiments: how many it shall have in the end, the inherited ones counted in.
        strategy: source of the strategy module.
        forked_from: the run whose first `forked_at` experiments it begins with.
        shadow: source of a strategy that is asked the same questions, without effect, to see whether it would have
            decided otherwise.
    """

    run: str
    arm: str
    seed: int
    experiments: int
    strategy: str
    forked_from: str | None = None
    forked_at: int = 0
    shadow: str | None = None


class _State(TypedDict):
    index: int


def run_inner(bench: Bench, plan: Plan, checkpoints: BaseCheckpointSaver[Any]) -> History:
    """Makes a run, or goes on with one, until it has all its experiments.

    Returns:
        The run's history.

    Raises:
        TaskError: the unchanged surface gives no score, so there is nothing to improve on.
        StrategyError: the strategy does not load.
        Stopped: asked to stop; `run_inner` with the same plan goes on.
    """
    loop = _InnerLoop(bench, plan)
    try:
        graph = StateGraph(_State)
        graph.add_node("propose", loop.propose)
        graph.add_node("run", loop.run)
        graph.add_node("decide", loop.decide)
        graph.add_edge(START, "propose")
        graph.add_edge("propose", "run")
        graph.add_edge("run", "decide")
        graph.add_conditional_edges("decide", loop.next_step, ["propose", END])
        if plan.forked_at < plan.experiments:
            drive(graph, plan.run, {"index": plan.forked_at}, 4 * plan.experiments + 10, checkpoints)
        bench.close_run(plan.run)
        return loop.history
    finally:
        loop.close()


class _InnerLoop:
    """The steps of one run. What they share is read from the record when they start."""

    def __init__(self, bench: Bench, plan: Plan) -> None:
        self.bench, self.plan, self.store = bench, plan, bench.store
        self.name = bench.task.surface_name
        bench.open_run(
            plan.run,
            kind="search",
            arm=plan.arm,
            strategy=bench.store.text(plan.strategy),
            forked_from=plan.forked_from,
            forked_at=plan.forked_at or None,
            seed=plan.seed,
            experiments=plan.experiments,
            model=bench.model.name,
            model_is_stand_in=bench.model.stand_in,
        )
        self.workspace = self._workspace()
        self._surfaces: dict[int, str] = {}  # by experiment, as they are needed
        self.history = history_of(self.store, plan.run, bench.noise, bench.task.metric.direction)
        view = bench.task.view(plan.experiments)
        seed = f"{plan.seed}"
        self.host = Host(plan.strategy, view, seed, bench.executor.tier)
        self.shadow = Host(plan.shadow, view, seed, bench.executor.tier) if plan.shadow is not None else None
        started = self.host.started
        self._put_call("start", plan.forked_at, functions=started.functions, seconds=started.seconds)
        for experiment in self.history:
            self._observe(experiment, record=False)

    def _workspace(self) -> Workspace:
        bench, plan = self.bench, self.plan
        folder = bench.repository(plan.run)
        if plan.forked_from is None:
            extra = {"program.md": bench.program}
            return Workspace.create(folder, self.name, bench.task.surface, extra, bench.created(plan.run))
        workspace = Workspace.open(bench.repository(plan.forked_from)).fork(folder, plan.forked_at)
        rows = self.store.rows(
            "SELECT * FROM experiment WHERE run = ? AND index < ? ORDER BY index", plan.forked_from, plan.forked_at
        )
        for row in rows:
            if row_of(self.store, plan.run, row["index"]) is None:
                self.store.put("experiment", **(row | {"run": plan.run, "inherited": True}))
        return workspace

    def close(self) -> None:
        """Ends the strategies' processes."""
        for host in (self.host, self.shadow):
            if host is not None:
                host.close()

    # The three steps of the graph.

    def propose(self, state: _State) -> _State:
        """Asks the strategy for a proposal, applies it, and commits it."""
        index = state["index"]
        row = row_of(self.store, self.plan.run, index)
        if row is None:
            self._propose(index)
            row = self._row(index)
        if row["commit"] is None:
            base = self._row(index if row["parent"] is None else row["parent"])
            message = row["hypothesis"] if row["detail"] is None else f"{row['status']}: {row['detail']}"
            commit = (
                self.workspace.commit(
                    index,
                    base["commit"],
                    self.store.get_text(row["surface"]),
                    message or "no reason given",
                    row["proposed"],
                )
                if index
                else self.workspace.experiments()[0]
            )
            self.store.put("experiment", run=self.plan.run, index=index, commit=commit)
        return state

    def run(self, state: _State) -> _State:
        """Trains and scores the proposal."""
        index = state["index"]
        row = row_of(self.store, self.plan.run, index)
        assert row is not None
        if row["step"] in ("measured", "decided"):
            return state
        self.store.put("experiment", run=self.plan.run, index=index, step="running", started=now())
        self.bench.report("training", {"run": self.plan.run, "index": index})
        surface = self.store.get_text(row["surface"])
        job = Job(self.bench.task, self.bench.corpus, surface, row["seed"])
        # What was decided before is published while this one trains: readers need not wait, and neither does the loop.
        with ThreadPoolExecutor(1) as aside:
            published = aside.submit(self.store.publish)
            outcome = self.bench.executor.run(job, self._prune(index) if self.host.prunes and index else None)
            published.result()
        put_outcome(self.store, self.plan.run, index, outcome)
        return state

    def decide(self, state: _State) -> _State:
        """Keeps or reverts, as the strategy says; what has no score is never kept."""
        index = state["index"]
        row = row_of(self.store, self.plan.run, index)
        assert row is not None
        if row["step"] != "decided":
            self._decide(index, row)
        if len(self.history) == index:
            decided = row_of(self.store, self.plan.run, index)
            assert decided is not None
            experiment = experiment_of(decided)
            self.history = dataclasses.replace(self.history, experiments=(*self.history.experiments, experiment))
            self._observe(experiment, record=True)
            scores = {"baseline": self.history.baseline.score, "best": self.history.best.score}
            self.bench.report("decided", scores | decided)
        return {"index": index + 1}

    def next_step(self, state: _State) -> str:
        """On, until the run has all its experiments."""
        return "propose" if state["index"] < self.plan.experiments else END

    # What the steps are made of.

    def _decide(self, index: int, row: dict[str, Any]) -> None:
        columns: dict[str, Any] = {"status": row["status"]}
        if index == 0:
            if row["score"] is None:
                raise TaskError(
                    f"the unchanged surface gives no score ({row['status']}: {row['detail']}): "
                    f"mend it, or the limits in {self.bench.task.path}"
                )
            columns["status"] = "baseline"
        elif row["score"] is not None:
            candidate = experiment_of(row)
            try:
                kept = self._call("accept", index, lambda host, _: host.accept(self.history, candidate))
            except StrategyError as error:
                kept, columns["detail"] = False, f"strategy: {error}"
            gain = self.history.gain(row["score"], self.history.best.score)
            columns["status"] = "keep" if kept else "discard"
            if kept and self.history.noise is not None:
                columns["significant"] = gain > 2 * self.history.noise
        if columns["status"] in ("baseline", "keep"):
            self.workspace.keep(row["commit"])
        self.store.put("experiment", run=self.plan.run, index=index, step="decided", decided=now(), **columns)

    def _propose(self, index: int) -> None:
        """Writes what the strategy proposes: a surface that is about to run, or one that is refused."""
        if index == 0:
            self._put_proposal(index, None, Proposal(Change(), "the surface as it is"), self.bench.task.surface)
            return
        try:
            proposal = self._call("propose", index, lambda host, ask: host.propose(self.history, ask))
        except StrategyError as error:
            self._refuse(index, self.history.best, Proposal(Change()), f"strategy: {error}")
            return
        parent = self.history.best
        if proposal.parent is not None:
            if not 0 <= proposal.parent < len(self.history):
                self._refuse(index, parent, proposal, f"there is no experiment {proposal.parent} to branch from")
                return
            parent = self.history[proposal.parent]
        try:
            before = self._surface(parent)
            surface = edit.apply(before, proposal.change, self.bench.task.constants, self.name)
            if surface == before:
                raise EditError("the proposal changes nothing: name a constant, a block or a text")
        except EditError as error:
            self._refuse(index, parent, proposal, str(error))
            return
        self._put_proposal(index, parent, proposal, surface)

    def _refuse(self, index: int, parent: Experiment, proposal: Proposal, why: str) -> None:
        """Writes a proposal that cannot be run: its surface is its parent's."""
        refused = {"step": "measured", "status": "refused", "detail": why, "finished": now()}
        self._put_proposal(index, parent, proposal, self._surface(parent), **refused)

    def _put_proposal(
        self, index: int, parent: Experiment | None, proposal: Proposal, surface: str, **columns: Any
    ) -> None:
        constants = edit.read_constants(surface, self.name)
        before = surface if parent is None else self._surface(parent)
        known = constants if parent is None else parent.constants
        moves = moves_between(self.bench.task.constants, known, constants)
        row = {
            "step": "proposed",
            "seed": self.plan.seed,
            "parent": None if parent is None else parent.index,
            "hypothesis": proposal.hypothesis,
            "change": to_json(proposal.change),
            "constants": constants,
            "moves": [to_json(move) for move in moves],
            "proposed": now(),
        }
        with self.store.transaction():
            row["surface"] = self.store.text(surface)
            row["diff"] = self.store.text(edit.diff(before, surface, self.name))
            self.store.put("experiment", run=self.plan.run, index=index, **(row | columns))

    def _row(self, index: int) -> dict[str, Any]:
        row = row_of(self.store, self.plan.run, index)
        assert row is not None
        return row

    def _surface(self, experiment: Experiment) -> str:
        if experiment.index not in self._surfaces:
            self._surfaces[experiment.index] = self.store.get_text(self._row(experiment.index)["surface"])
        return self._surfaces[experiment.index]

    def _observe(self, experiment: Experiment, record: bool) -> None:
        """Tells the strategies of a decided experiment, with the history up to it."""
        history = dataclasses.replace(self.history, experiments=self.history.experiments[: experiment.index + 1])
        for host in (self.host, self.shadow):
            if host is None:
                continue
            try:
                call = host.observe(history, experiment)
            except StrategyError as error:
                if host is self.host and record:
                    self._put_call("observe", experiment.index, error=str(error))
                continue
            if host is self.host and record and host.observes:
                self._put_call("observe", experiment.index, functions=call.functions, seconds=call.seconds)

    def _prune(self, index: int) -> Callable[[tuple[CurvePoint, ...]], bool]:
        broken = False

        def prune(curve: tuple[CurvePoint, ...]) -> bool:
            nonlocal broken
            if broken:
                return False
            try:
                call = self.host.prune(self.history, curve)
            except StrategyError as error:
                # A rule that fails stops no experiment, and is not asked again in this one.
                broken = True
                self._put_call("prune", index, error=str(error))
                return False
            if call.answer:
                self._put_call("prune", index, functions=call.functions, seconds=call.seconds, answer=True)
            return call.answer

        return prune

    def _call(self, step: str, index: int, call: Callable[[Host, Questions], Call[Any]]) -> Any:
        """Calls the strategy, and its shadow if there is one, and records both answers.

        Raises:
            StrategyError: the strategy failed; that is recorded too.
        """
        bench, plan = self.bench, self.plan
        asking = (bench, plan.run, plan.seed, plan.experiments, self.history)
        questions = Questions(*asking)
        try:
            made = call(self.host, questions)
        except StrategyError as error:
            self._put_call(step, index, error=str(error))
            raise
        answer = self._plain(made.answer)
        columns: dict[str, Any] = {"functions": made.functions, "seconds": made.seconds, "answer": answer}
        if self.shadow is not None:
            try:
                other = self._plain(call(self.shadow, Questions(*asking, overheard=questions)).answer)
                columns |= {"shadow": other, "differs": _decision(other) != _decision(answer)}
            except AskedOtherwise as otherwise:
                columns |= {"shadow": {"asked": to_json(otherwise.request)}, "differs": True}
            except StrategyError as error:
                columns |= {"shadow": {"error": str(error)}, "differs": True}
        self._put_call(step, index, **columns)
        return made.answer

    def _plain(self, answer: Any) -> Any:
        """An answer as data; a parent that is the best so far is the one that would have been taken anyway."""
        if isinstance(answer, Proposal) and answer.parent == self.history.best.index:
            answer = dataclasses.replace(answer, parent=None)
        return to_json(answer) if isinstance(answer, Proposal) else answer

    def _put_call(self, step: str, index: int, **columns: Any) -> None:
        strategy = self.store.text(self.plan.strategy)
        self.store.put("strategy_call", run=self.plan.run, experiment=index, step=step, strategy=strategy, **columns)


def _decision(answer: Any) -> str:
    """What of an answer decides anything: not the words of a hypothesis."""
    if isinstance(answer, dict):
        answer = {key: value for key, value in answer.items() if key != "hypothesis"}
    return json.dumps(answer, sort_keys=True, default=list)

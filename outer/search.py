"""Level 2: the search for better search strategies, as a subject of the outer loop.

Every step writes its row of `meta_iteration` before it returns, and does nothing if the row says that it is done.
Strategies are commits in a repository of their own, adopted or not.
"""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from inner.history import History
from inner.loop import Plan, run_inner
from inner.measure import Sample, measure
from inner.record import Bench, derive_seed, history_of, now, put_strategy
from inner.workspace import Workspace
from outer.check import Check, Finding, check
from outer.compare import Evidence, Pair, decide, difference, new_functions
from outer.digest import diagnose, digest_of
from outer.loop import ATTEMPTS
from outer.researcher import Attempt, Researcher
from traces.errors import StrategyError


@dataclass(frozen=True)
class Trials:
    """How candidates are tried.

    Attributes:
        seed: that the seeds of all pairs come from.
        pairs: runs of the incumbent and of the candidate, each pair with a seed of its own.
        experiments: that each run adds to the frozen state.
        fresh_seeds: seeds on which the best of each run is measured again; these measurements decide.
        confidence: of the interval of the gain.
    """

    seed: int
    pairs: int
    experiments: int
    fresh_seeds: int
    confidence: float


ARMS = ("incumbent", "candidate")


class StrategySearch:
    """Searches for a strategy that searches better, beginning with `seed_strategy` and the state of a finished run."""

    def __init__(
        self,
        bench: Bench,
        trials: Trials,
        seed_strategy: str,
        run: str,
        researcher: Researcher,
        checkpoints: BaseCheckpointSaver[Any],
    ) -> None:
        self.bench, self.trials, self.researcher, self.checkpoints = bench, trials, researcher, checkpoints
        self.store, self.study, self.report = bench.store, bench.study, bench.report
        self.seed_strategy, self.first_run = self.store.text(seed_strategy), run
        sources = f"{self.study}.strategies"
        bench.open_run(sources, kind="strategies", seed=trials.seed, experiments=0)
        folder = bench.repository(sources)
        self.workspace = Workspace.create(folder, "strategy.py", seed_strategy, {}, bench.created(sources))
        bench.close_run(sources)

    # The steps of the outer loop.

    def digest(self, index: int) -> None:
        """Reads the record of the frozen run, and diagnoses where its search is stuck."""
        if self._row(index) is not None:
            return
        incumbent, run, at = self._state(index)
        digest = digest_of(self.store, run, self.bench.task.view(at))
        diagnosis = diagnose(digest)
        self._put(
            index,
            step="diagnosed",
            incumbent=incumbent,
            frozen_run=run,
            frozen_at=at,
            digest=dataclasses.asdict(digest),
            diagnosis=diagnosis.text,
            created=now(),
        )
        self.report("diagnosed", {"index": index, "diagnosis": diagnosis.text})

    def research(self, index: int, attempt: int) -> None:
        """Writes a candidate strategy, and commits it."""
        row = self._need(index)
        done = len(row["checks"] or [])
        if done > attempt or (done == attempt and row["step"] == "proposed"):
            return
        incumbent, run, at = self._state(index)
        digest = digest_of(self.store, run, self.bench.task.view(at))
        feedback = tuple(line for earlier in row["checks"] or [] for line in earlier["feedback"])
        rng = random.Random(f"{self.trials.seed}:research:{index}")
        draft = self.researcher.research(diagnose(digest), self._attempts(index), rng, feedback)
        number = 1 + (index - 1) * ATTEMPTS + attempt
        commit = self.workspace.commit(
            number, self._commit_of(incumbent), draft.source, f"{draft.name}: {draft.rationale}", row["created"]
        )
        candidate = put_strategy(self.store, draft.source, "catalogue", draft.mechanisms, commit)
        self._put(index, step="proposed", candidate=candidate, mechanism=draft.name, rationale=draft.rationale)
        self.report("researched", {"index": index, "mechanism": draft.name, "rationale": draft.rationale})

    def check(self, index: int, attempt: int) -> bool:
        """Holds the candidate to the contract, on the study's own histories."""
        row = self._need(index)
        checks = list(row["checks"] or [])
        if len(checks) <= attempt:
            source, incumbent = (self.store.get_text(row[arm]) for arm in ("candidate", "incumbent"))
            view = self.bench.task.view(row["frozen_at"] + self.trials.experiments)
            found = check(source, incumbent, view, self._histories(row), self.bench.executor.tier)
            checks.append(dataclasses.asdict(found) | {"feedback": found.feedback})
            self._put(index, step="checked", checks=checks)
            said = found.feedback or [f"{f.name}: {f.detail}" if f.detail else f.name for f in found.findings]
            self.report("checked", {"index": index, "ok": found.ok, "findings": list(said)})
        return _check_of(checks[attempt]).ok

    def trial(self, index: int) -> None:
        """Runs the pairs, and measures the best of each run again on fresh seeds."""
        row = self._need(index)
        if row["step"] in ("tried", "decided"):
            return
        plans = [self._plan(index, row, pair, arm) for pair in range(self.trials.pairs) for arm in ARMS]
        self.report("pairs", {"index": index, "pairs": self.trials.pairs, "experiments": self.trials.experiments})
        with ThreadPoolExecutor(self.bench.executor.slots) as pool:
            histories = list(pool.map(self._run, plans))
        scores = self._confirm(index, plans, histories)
        for pair in range(self.trials.pairs):
            incumbent, candidate = plans[2 * pair], plans[2 * pair + 1]
            both = Pair(incumbent.seed, scores[incumbent.run], scores[candidate.run])
            self.store.put(
                "pair",
                study=self.study,
                meta_iteration=index,
                index=pair,
                seed=incumbent.seed,
                incumbent_run=incumbent.run,
                candidate_run=candidate.run,
                incumbent_scores=both.incumbent,
                candidate_scores=both.candidate,
                difference=difference(both, self.bench.task.metric.direction),
            )
        self._put(index, step="tried")

    def compare(self, index: int) -> None:
        """Decides, and says which strategy and which state the next meta-iteration begins with."""
        row = self._need(index)
        if row["step"] == "decided":
            return
        pairs = self._pairs(index)
        verdict = decide(
            [Pair(pair["seed"], tuple(pair["incumbent_scores"]), tuple(pair["candidate_scores"])) for pair in pairs],
            self._evidence(row, pairs),
            _check_of(row["checks"][-1]),
            self.trials.confidence,
            self.bench.task.metric.direction,
        )
        adopted = verdict.decision == "adopt"
        if adopted:
            self.workspace.keep(self._commit_of(row["candidate"]))
        run, at = self._next_state(row, pairs, "candidate" if adopted else "incumbent")
        columns = dataclasses.asdict(verdict)
        columns["calls_compared"], columns["calls_differing"] = columns.pop("compared"), columns.pop("differing")
        self._put(index, step="decided", next_run=run, next_at=at, finished=now(), **columns)
        self.store.publish()
        self.report("verdict", {"index": index, "mechanism": row["mechanism"], **columns})

    def refuse(self, index: int) -> None:
        """Records that no candidate kept the contract; the state stays as it was."""
        row = self._need(index)
        if row["step"] == "decided":
            return
        reason = f"it failed its check {len(row['checks'])} times: {'; '.join(row['checks'][-1]['feedback'])}"
        columns = {"decision": "invalid", "reason": reason, "next_run": row["frozen_run"], "next_at": row["frozen_at"]}
        self._put(index, step="decided", finished=now(), pairs=0, **columns)
        self.report("verdict", {"index": index, "mechanism": row["mechanism"], **columns})

    def frozen(self, iterations: int) -> str:
        """The run whose state the search has reached after so many meta-iterations."""
        return self._state(iterations + 1)[1]

    # What the steps are made of.

    def _row(self, index: int) -> dict[str, Any] | None:
        rows = self.store.rows("SELECT * FROM meta_iteration WHERE study = ? AND index = ?", self.study, index)
        return rows[0] if rows else None

    def _need(self, index: int) -> dict[str, Any]:
        row = self._row(index)
        assert row is not None
        return row

    def _put(self, index: int, **columns: Any) -> None:
        self.store.put("meta_iteration", study=self.study, index=index, **columns)

    def _state(self, index: int) -> tuple[str, str, int]:
        """What a meta-iteration begins with: the incumbent's hash, the frozen run, and how many experiments it has."""
        if index == 1:
            rows = self.store.rows("SELECT experiments FROM run WHERE id = ?", self.first_run)
            return self.seed_strategy, self.first_run, int(rows[0]["experiments"])
        row = self._need(index - 1)
        incumbent = row["candidate"] if row["decision"] == "adopt" else row["incumbent"]
        return incumbent, row["next_run"], int(row["next_at"])

    def _commit_of(self, strategy: str) -> str:
        if strategy == self.seed_strategy:
            return self.workspace.experiments()[0]
        return str(self.store.rows("SELECT commit FROM strategy WHERE hash = ?", strategy)[0]["commit"])

    def _attempts(self, index: int) -> tuple[Attempt, ...]:
        rows = self.store.rows(
            "SELECT mechanisms, decision FROM meta_iteration JOIN strategy ON strategy.hash = candidate "
            "WHERE study = ? AND index < ? ORDER BY index",
            self.study,
            index,
        )
        return tuple(Attempt(tuple(row["mechanisms"]), row["decision"]) for row in rows)

    def _histories(self, row: dict[str, Any]) -> list[History]:
        """The study's histories that a candidate is rehearsed on: those of level 1 and the frozen one."""
        rows = self.store.rows(
            "SELECT id FROM run WHERE study = ? AND arm = 'level1' AND status = 'done' ORDER BY id", self.study
        )
        return [self._history(run) for run in dict.fromkeys([row["frozen_run"], *(found["id"] for found in rows)])]

    def _history(self, run: str) -> History:
        return history_of(self.store, run, self.bench.noise, self.bench.task.metric.direction)

    def _plan(self, index: int, row: dict[str, Any], pair: int, arm: str) -> Plan:
        return Plan(
            run=f"{self.study}.m{index}.p{pair + 1}.{arm}",
            arm=arm,
            seed=derive_seed(self.trials.seed, index, pair),
            experiments=row["frozen_at"] + self.trials.experiments,
            strategy=self.store.get_text(row[arm]),
            forked_from=row["frozen_run"],
            forked_at=row["frozen_at"],
            shadow=self.store.get_text(row["incumbent"]) if arm == "candidate" else None,
        )

    def _run(self, plan: Plan) -> History | None:
        """One run of a pair, `None` if its strategy does not load."""
        try:
            return run_inner(self.bench, plan, self.checkpoints)
        except StrategyError as error:
            self.bench.close_run(plan.run, "failed")
            self.report("note", {"text": f"{plan.run}: {error}"})
            return None

    def _confirm(self, index: int, plans: list[Plan], histories: list[History | None]) -> dict[str, tuple[float, ...]]:
        """The scores of each run's best on fresh seeds, the same for both runs of a pair.

        Where both runs of a pair end at the same surface it is measured once: there is nothing between them.
        """
        count = self.trials.fresh_seeds
        samples: dict[tuple[str, int], Sample] = {}
        wanted: dict[str, list[tuple[str, int]]] = {}
        for plan, history in zip(plans, histories, strict=True):
            wanted[plan.run] = []
            if history is None:
                continue
            best = self.store.rows(
                "SELECT surface FROM experiment WHERE run = ? AND index = ?", plan.run, history.best.index
            )[0]["surface"]
            seeds = [derive_seed(plan.seed, "fresh", i) for i in range(count)]
            wanted[plan.run] += [(best, seed) for seed in seeds]
            for seed in seeds:
                samples.setdefault((best, seed), Sample(f"best of {plan.run}", self.store.get_text(best), seed))
        if not samples:
            return {run: () for run in wanted}
        rows = measure(self.bench, f"{self.study}.m{index}.confirm", "confirm", list(samples.values()))
        scores = {key: row["score"] for key, row in zip(samples, rows, strict=True)}
        return {run: tuple(scores[key] for key in keys if scores[key] is not None) for run, keys in wanted.items()}

    def _pairs(self, index: int) -> list[dict[str, Any]]:
        return self.store.rows(
            "SELECT * FROM pair WHERE study = ? AND meta_iteration = ? ORDER BY index", self.study, index
        )

    def _evidence(self, row: dict[str, Any], pairs: list[dict[str, Any]]) -> Evidence:
        """What the candidate's functions did in its runs of the trial."""
        calls = self.store.rows(
            "SELECT functions, differs FROM strategy_call WHERE run IN (SELECT unnest(?::VARCHAR[]))",
            [pair["candidate_run"] for pair in pairs],
        )
        incumbent, candidate = self.store.get_text(row["incumbent"]), self.store.get_text(row["candidate"])
        compared = [call["differs"] for call in calls if call["differs"] is not None]
        return Evidence(
            new=new_functions(incumbent, candidate),
            ran=frozenset(name for call in calls for name in call["functions"] or []),
            compared=len(compared),
            differing=sum(compared),
        )

    def _next_state(self, row: dict[str, Any], pairs: list[dict[str, Any]], arm: str) -> tuple[str, int]:
        """Where the kept strategy's best confirmed run ended. It is re-measured before anybody is told of a gain."""
        sign = 1 if self.bench.task.metric.direction == "minimize" else -1
        ends = [
            (sign * sum(pair[f"{arm}_scores"]) / len(pair[f"{arm}_scores"]), pair[f"{arm}_run"])
            for pair in pairs
            if pair[f"{arm}_scores"]
        ]
        if not ends:
            return row["frozen_run"], row["frozen_at"]
        return min(ends)[1], row["frozen_at"] + self.trials.experiments


def _check_of(data: dict[str, Any]) -> Check:
    findings = tuple(Finding(**finding) for finding in data["findings"])
    return Check(findings, data["compared"], data["differing"], data["seconds"])

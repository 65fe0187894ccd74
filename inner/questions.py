"""A strategy's questions to the language model: answered once, recorded, and answered from the record ever after."""

from __future__ import annotations

import json
import random

from inner.history import History, Proposal, Request, proposal_from, to_json
from inner.model import Answer
from inner.record import Bench
from traces.errors import StrategyError

MOST_QUESTIONS = 8
"""How often a strategy may ask the language model before one experiment."""


class AskedOtherwise(Exception):
    """A shadow put another question to a model whose answers cost something: that is a difference already."""

    def __init__(self, request: Request) -> None:
        self.request = request


class Questions:
    """Answers the questions that a strategy asks before one experiment.

    The answer to the nth question depends on the seed, the experiment and n, and on nothing else that two arms of a
    pair do not share: asked the same on the same history, both get the same.
    """

    def __init__(
        self, bench: Bench, run: str, seed: int, experiments: int, history: History, overheard: Questions | None = None
    ) -> None:
        """For one experiment, the one that follows `history`.

        If `overheard` is given, a strategy's shadow is asking: where the strategy itself asked the same, it gets the
        same answer, and nothing is recorded.
        """
        self._bench, self._run, self._seed, self._history = bench, run, seed, history
        self._view = bench.task.view(experiments)
        self._overheard = overheard
        self._ordinal = 0
        self._answers: list[tuple[Request, tuple[Proposal, ...]]] = []

    def __call__(self, request: Request) -> tuple[Proposal, ...]:
        """The model's proposals. Raises `StrategyError` for too many questions, and `AskedOtherwise` as it says."""
        if self._ordinal >= MOST_QUESTIONS:
            raise StrategyError(f"asked the language model more than {MOST_QUESTIONS} times")
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        proposals = self._recorded(ordinal, request) if self._overheard is None else self._overhear(ordinal, request)
        self._answers.append((request, proposals))
        return proposals

    def _overhear(self, ordinal: int, request: Request) -> tuple[Proposal, ...]:
        heard = self._overheard._answers if self._overheard is not None else []
        if ordinal < len(heard) and heard[ordinal][0] == request:
            return heard[ordinal][1]
        if not self._bench.model.free:
            raise AskedOtherwise(request)
        return self._ask(ordinal, request).proposals

    def _ask(self, ordinal: int, request: Request) -> Answer:
        rng = random.Random(f"{self._seed}:{len(self._history)}:{ordinal}")
        return self._bench.model.ask(request, self._history, self._view, rng)

    def _recorded(self, ordinal: int, request: Request) -> tuple[Proposal, ...]:
        store, index = self._bench.store, len(self._history)
        asked = store.text(json.dumps(to_json(request), sort_keys=True))
        rows = store.rows(
            "SELECT request, completion FROM model_call WHERE run = ? AND experiment = ? AND ordinal = ?",
            self._run, index, ordinal,
        )  # fmt: skip
        if rows and rows[0]["request"] == asked and rows[0]["completion"] is not None:
            return tuple(proposal_from(p) for p in json.loads(store.get_text(rows[0]["completion"]))["proposals"])
        answer = self._ask(ordinal, request)
        completion = {"text": answer.text, "proposals": [to_json(proposal) for proposal in answer.proposals]}
        store.put(
            "model_call",
            run=self._run,
            experiment=index,
            ordinal=ordinal,
            role="inner",
            model=self._bench.model.name,
            request=asked,
            completion=store.text(json.dumps(completion)),
            status=answer.status,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cost=answer.cost,
            seconds=answer.seconds,
        )
        return answer.proposals

"""Language models: the seam between a search and whatever answers it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, Protocol

from inner.history import History, Proposal, Request, TaskView
from traces.errors import UserError


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said.

    Attributes:
        proposals: at most as many as were asked for, all different.
        text: the completion as it came.
        prompt_tokens: `None` if nobody counted them.
        completion_tokens: `None` if nobody counted them.
        cost: in US dollars, `None` if unknown.
        seconds: wall time of the call.
        status: `refused` if the model would not answer, `failed` if there is no answer to read.
    """

    proposals: tuple[Proposal, ...]
    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    seconds: float
    status: Literal["ok", "refused", "failed"] = "ok"


class Model(Protocol):
    """A language model, or what stands in for one."""

    @property
    def name(self) -> str:
        """As it is named in the record."""

    @property
    def stand_in(self) -> bool:
        """Whether this is no language model: every result of it is marked so."""

    @property
    def free(self) -> bool:
        """Whether a call costs nothing, so that questions may be asked whose answers nobody runs."""

    def ask(self, request: Request, history: History, task: TaskView, rng: random.Random) -> Answer:
        """The model's proposals.

        Args:
            request: what is wanted.
            history: all of the run so far; `request.show` says how much of it the model sees.
            task: the space of constants.
            rng: of this call alone; the only chance that a stand-in may use.
        """


def load_model(name: str) -> Model:
    """The model of that name.

    Raises:
        UserError: there is none.
    """
    from inner.prior import Prior

    if name == "prior":
        return Prior()
    raise UserError(f"unknown model {name!r}: the one built in is prior, a stand-in that needs no key")

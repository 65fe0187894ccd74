"""Who writes the candidates: the seam, and the researcher that needs no model.

Level 3 improves what stands behind this seam.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outer.catalogue import CATALOGUE, Mechanism, compose, conflict
from outer.digest import Diagnosis

WEIGHTS: dict[str, float] = {"indecisive": 0.3, "inert": 0.2, "reject": 0.1, "invalid": 0.1}
"""What an earlier trial of a mechanism leaves of its merit. Nothing is ruled out for good: the search has moved on."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A candidate of an earlier meta-iteration.

    Attributes:
        mechanisms: all that were in it.
        decision: what was decided: see `outer.compare`; `None` if it has not been decided.
    """

    mechanisms: tuple[str, ...]
    decision: str | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate.

    Attributes:
        name: of what is new in it.
        mechanisms: all that are in it, the new one last.
        source: of the strategy module.
        rationale: why this one, in a sentence or two.
    """

    name: str
    mechanisms: tuple[str, ...]
    source: str
    rationale: str


class Researcher(Protocol):
    """Reads a diagnosis and writes a strategy."""

    def research(
        self,
        diagnosis: Diagnosis,
        attempts: Sequence[Attempt],
        rng: random.Random,
        feedback: Sequence[str] = (),
    ) -> Draft:
        """Writes a candidate.

        Args:
            diagnosis: where the incumbent's search is stuck, with the digest of its record.
            attempts: of earlier meta-iterations, oldest first; what was adopted is the incumbent's.
            rng: decides where there is no reason to; in the same state for every draft of a meta-iteration.
            feedback: what the checks of this meta-iteration's earlier drafts did not let pass.
        """


class CatalogueResearcher:
    """Adds to the incumbent the mechanism of the catalogue that best answers the symptoms.

    A mechanism has merit for every symptom it answers: more if the symptom is severe, less if it is not what the
    mechanism answers first, and less for each earlier trial that did not end in its adoption. Where it cannot be in one
    strategy with a mechanism of the incumbent, it takes that one's place. After a failed check, the next best is taken.
    """

    def research(
        self,
        diagnosis: Diagnosis,
        attempts: Sequence[Attempt],
        rng: random.Random,
        feedback: Sequence[str] = (),
    ) -> Draft:
        """See `Researcher.research`. Each line of feedback passes over one mechanism more."""
        incumbent, trials = _past(attempts)
        fresh = [entry for entry in CATALOGUE if entry.name not in incumbent]
        rng.shuffle(fresh)  # equals are taken in the order of chance: sorting keeps it
        fresh.sort(key=lambda entry: -_merit(entry, diagnosis, trials.get(entry.name, [])))
        chosen = fresh[len(feedback) % len(fresh)]
        kept = tuple(name for name in incumbent if conflict((name, chosen.name)) is None)
        mechanisms = (*kept, chosen.name)
        answered = [symptom.evidence for symptom in diagnosis.symptoms if symptom.name in chosen.symptoms]
        reasons = [f"{chosen.title} ({chosen.citation}): {chosen.why}.", *answered]
        if not answered:
            reasons.append("No symptom asks for it.")
        reasons += [f"It takes the place of {name}." for name in incumbent if name not in kept]
        return Draft(chosen.name, mechanisms, compose(mechanisms), " ".join(reasons))


def _past(attempts: Sequence[Attempt]) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The incumbent's mechanisms, and for each mechanism how its trials ended as long as it was not adopted."""
    incumbent: tuple[str, ...] = ()
    trials: dict[str, list[str]] = {}
    for attempt in attempts:
        for name in attempt.mechanisms:
            if name not in incumbent and attempt.decision is not None:
                trials.setdefault(name, []).append(attempt.decision)
        if attempt.decision == "adopt":
            incumbent = attempt.mechanisms
    return incumbent, trials


def _merit(entry: Mechanism, diagnosis: Diagnosis, trials: Sequence[str]) -> float:
    merit = sum(
        (1 + symptom.severity) / (1 + entry.symptoms.index(symptom.name))
        for symptom in diagnosis.symptoms
        if symptom.name in entry.symptoms
    )
    return merit * math.prod(WEIGHTS.get(decision, 1.0) for decision in trials)

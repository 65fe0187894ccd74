from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outer.catalogue import CATALOGUE, compose, conflict
from outer.digest import THRESHOLDS, Diagnosis, Digest, Symptom, SymptomName
from outer.researcher import Attempt, CatalogueResearcher, Draft, Researcher
from traces.stagnation import Stagnation

MEASURES = Stagnation("r", 12, 0.0, 0.0, 1.0, 0.5, 3, 3, 0.3, 0.2, 0.0)
DIGEST = Digest("r", MEASURES, 0.01, 1.0, 0.9, ((0, 1.0),), 2, 2, {}, 4, 9, ())
RESEARCHER: Researcher = CatalogueResearcher()


def stuck(**severities: float) -> Diagnosis:
    """A diagnosis of these symptoms, by name and severity."""
    symptoms = []
    for name, severity in severities.items():
        line = THRESHOLDS[name]  # type: ignore[index]
        symptoms.append(Symptom(name, line + severity * (1 - line), line, f"Evidence of {name}."))  # type: ignore[arg-type]
    return Diagnosis(DIGEST, tuple(symptoms), "")


def research(
    diagnosis: Diagnosis, attempts: Sequence[Attempt] = (), feedback: Sequence[str] = (), seed: int = 1
) -> Draft:
    return RESEARCHER.research(diagnosis, attempts, random.Random(seed), feedback)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_each_symptom_is_answered_by_a_mechanism_for_it_with_its_evidence(name: SymptomName) -> None:
    draft = research(stuck(**{name: 0.5}))
    chosen = next(entry for entry in CATALOGUE if entry.name == draft.name)
    first_choices = [entry for entry in CATALOGUE if entry.symptoms[0] == name]
    assert chosen in (first_choices or [entry for entry in CATALOGUE if name in entry.symptoms])
    assert draft.mechanisms == (draft.name,)
    assert draft.source == compose([draft.name])
    assert f"Evidence of {name}." in draft.rationale
    assert chosen.citation in draft.rationale


def test_the_severer_symptom_is_answered() -> None:
    assert research(stuck(luck=0.9, one_way=0.0)).name in ("noise_floor", "pattern_search")
    assert research(stuck(luck=0.0, one_way=0.9)).name == "opposition"


def test_the_same_generator_gives_the_same_draft_and_chance_decides_between_equals() -> None:
    nothing = stuck()
    assert research(nothing, seed=3) == research(nothing, seed=3)
    assert len({research(nothing, seed=seed).name for seed in range(40)}) > 4


def test_what_was_rejected_gives_way_to_what_was_not_tried() -> None:
    diagnosis = stuck(fixation=0.9)
    tried: list[Attempt] = []
    for decision in ("reject", "indecisive", "inert", "invalid"):
        name = research(diagnosis, tried).name
        assert name not in [attempt.mechanisms[-1] for attempt in tried]
        tried.append(Attempt((name,), decision))


def test_a_tried_mechanism_comes_back_when_its_rivals_fared_worse() -> None:
    attempts = [Attempt((entry.name,), "reject") for entry in CATALOGUE]
    attempts[0] = Attempt((CATALOGUE[0].name,), "indecisive")
    assert research(stuck(**{CATALOGUE[0].symptoms[0]: 0.5}), attempts).name == CATALOGUE[0].name


def test_an_adopted_mechanism_stays_and_the_next_is_added_to_it() -> None:
    draft = research(stuck(one_way=0.9), [Attempt(("tabu",), "adopt"), Attempt(("tabu", "novelty"), "reject")])
    assert draft.mechanisms == ("tabu", "opposition")
    assert draft.source == compose(["tabu", "opposition"])


def test_what_is_adopted_is_not_blamed_for_what_was_tried_on_top_of_it() -> None:
    rejected = [Attempt((name,), "reject") for name in ("recombination", "fresh_history")]
    attempts = [*rejected, Attempt(("annealing",), "adopt"), Attempt(("annealing", "tabu"), "reject")]
    attempts.append(Attempt(("noise_floor",), "adopt"))
    assert research(stuck(drought=0.5), attempts).mechanisms == ("annealing",)


def test_a_mechanism_takes_the_place_of_one_that_it_cannot_stand_beside() -> None:
    attempts = [Attempt(("tabu", "annealing"), "adopt"), Attempt(("tabu", "annealing", "pattern_search"), "reject")]
    draft = research(stuck(luck=0.9), attempts)
    assert draft.mechanisms == ("tabu", "noise_floor")
    assert "takes the place of annealing" in draft.rationale


def test_after_each_failed_check_another_mechanism_is_drafted() -> None:
    diagnosis = stuck(fixation=0.5, drought=0.2)
    names = [research(diagnosis, feedback=["differs: changes no decision"] * count).name for count in range(4)]
    assert len(set(names)) == 4


@pytest.mark.parametrize("seed", range(20))
def test_a_long_study_never_runs_out_of_drafts_that_can_be_composed(seed: int) -> None:
    rng = random.Random(seed)
    attempts: list[Attempt] = []
    for _ in range(25):
        shown = {name: rng.random() for name in rng.sample(sorted(THRESHOLDS), 3)}
        draft = RESEARCHER.research(stuck(**shown), attempts, rng)
        assert conflict(draft.mechanisms) is None
        attempts.append(Attempt(draft.mechanisms, rng.choice(["adopt", "reject", "indecisive", "inert"])))

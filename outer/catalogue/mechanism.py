"""The list of mechanisms: what each is called, where it comes from, and which symptoms it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from outer.digest import SymptomName

Role = Literal["direct", "focus", "avoid", "view", "choose", "accept"]

EXCLUSIVE: frozenset[Role] = frozenset({"focus", "accept"})
"""Roles that only one mechanism of a strategy can have: a second one would overrule the first."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One way to search differently.

    Attributes:
        name: also that of its module in this folder; its class has the same name in capitals.
        title: for people.
        why: what it does about the symptoms, in half a sentence.
        citation: author and year.
        work: what is cited.
        symptoms: what it answers, the most fitting first.
        role: what it decides: a proposal of its own (`direct`), the constants that the model may change (`focus`),
            moves that it may not make (`avoid`), what it sees (`view`), which of its ideas is run (`choose`), or what
            is kept (`accept`).
    """

    name: str
    title: str
    why: str
    citation: str
    work: str
    symptoms: tuple[SymptomName, ...]
    role: Role

    @property
    def class_name(self) -> str:
        """As in `fresh_history` and `FreshHistory`."""
        return self.name.title().replace("_", "")


CATALOGUE: tuple[Mechanism, ...] = (
    Mechanism(
        name="tabu",
        title="tabu list",
        why="a move that was made lately may be neither repeated nor undone",
        citation="Glover 1989",
        work="Tabu Search, Part I. ORSA Journal on Computing 1(3)",
        symptoms=("repetition", "failures", "one_way"),
        role="avoid",
    ),
    Mechanism(
        name="opposition",
        title="opposite direction",
        why="a step that failed is answered by the same step the other way",
        citation="Tizhoosh 2005",
        work="Opposition-Based Learning: A New Scheme for Machine Intelligence. CIMCA",
        symptoms=("one_way", "uncovered", "drought"),
        role="direct",
    ),
    Mechanism(
        name="pattern_search",
        title="pattern search",
        why="a step that paid is taken again, twice as far, and halved when it went too far",
        citation="Hooke & Jeeves 1961",
        work="Direct Search Solution of Numerical and Statistical Problems. Journal of the ACM 8(2)",
        symptoms=("luck", "drought"),
        role="direct",
    ),
    Mechanism(
        name="recombination",
        title="recombination",
        why="after a row of failures, two changes that nearly paid are tried together",
        citation="Holland 1975",
        work="Adaptation in Natural and Artificial Systems. University of Michigan Press",
        symptoms=("drought", "luck"),
        role="direct",
    ),
    Mechanism(
        name="coverage",
        title="coverage of constants",
        why="after a failure, the model may change only the constants that were tried least",
        citation="Thrun 1992",
        work="Efficient Exploration in Reinforcement Learning (counter-based). CMU-CS-92-102",
        symptoms=("fixation", "uncovered", "repetition"),
        role="focus",
    ),
    Mechanism(
        name="bandit",
        title="bandit over constants",
        why="the model may change only the constants that are most likely to pay, by what they have paid so far",
        citation="Thompson 1933",
        work="On the Likelihood That One Unknown Probability Exceeds Another. Biometrika 25",
        symptoms=("fixation", "drought", "failures"),
        role="focus",
    ),
    Mechanism(
        name="fresh_history",
        title="fresh history",
        why="from time to time the model sees none of what came before, and begins again from the best surface",
        citation="Luby, Sinclair & Zuckerman 1993",
        work="Optimal Speedup of Las Vegas Algorithms. Information Processing Letters 47(4)",
        symptoms=("drought", "repetition", "fixation"),
        role="view",
    ),
    Mechanism(
        name="novelty",
        title="novelty",
        why="of several ideas of the model, the one farthest from every experiment so far is run",
        citation="Lehman & Stanley 2011",
        work="Abandoning Objectives: Evolution Through the Search for Novelty Alone. Evolutionary Computation 19(2)",
        symptoms=("repetition", "uncovered", "fixation"),
        role="choose",
    ),
    Mechanism(
        name="annealing",
        title="annealed acceptance",
        why="early in a run a small loss is kept now and then, and the search goes on from there",
        citation="Kirkpatrick, Gelatt & Vecchi 1983",
        work="Optimization by Simulated Annealing. Science 220",
        symptoms=("drought",),
        role="accept",
    ),
    Mechanism(
        name="noise_floor",
        title="acceptance by the noise floor",
        why="what is better by no more than noise explains is not kept",
        citation="Markon, Arnold, Bäck, Beielstein & Beyer 2001",
        work="Thresholding: a Selection Operator for Noisy ES. CEC",
        symptoms=("luck",),
        role="accept",
    ),
)


def mechanism(name: str) -> Mechanism:
    """The mechanism of that name. Raises `KeyError` with the names that there are."""
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise KeyError(f"no mechanism {name!r}: there are {', '.join(entry.name for entry in CATALOGUE)}")


def conflict(names: Iterable[str]) -> str | None:
    """Why these mechanisms cannot be in one strategy, in one line; `None` if they can."""
    seen: dict[Role, str] = {}
    chosen: set[str] = set()
    for name in names:
        role = mechanism(name).role
        if name in chosen:
            return f"{name} is named twice"
        if role in EXCLUSIVE and role in seen:
            what = "which constants the model may change" if role == "focus" else "what is kept"
            return f"{seen[role]} and {name} both decide {what}: take one of them"
        chosen.add(name)
        seen[role] = name
    return None

"""What the meta-agent reads: the record of a run as a few figures, and what they say about where it is stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inner.history import FAILED, TaskView
from traces.errors import UserError
from traces.stagnation import Stagnation, measure
from traces.store import Reader

SymptomName = Literal["repetition", "fixation", "one_way", "uncovered", "luck", "drought", "failures"]

THRESHOLDS: dict[SymptomName, float] = {
    # An experiment that was run before says nothing new. The published logs give no values to count repetitions by; a
    # tenth of the budget is our own line.
    "repetition": 0.10,
    # The three published runs of level 1 alone, which went nowhere, changed the constant of the proposal before in 72
    # to 83 % of their proposals; three that restarted did in 52 to 62 %.
    "fixation": 0.65,
    # The former never turned: 100 % of the moves of a constant went in its usual direction, in each of the three.
    "one_way": 0.90,
    # In 30 proposals the former made 4 to 7 different moves, as far as their hypotheses tell; the latter 9 to 11.
    "uncovered": 0.70,
    # Half of what was kept being no better than noise: a search that is led by luck as much as by gains.
    "luck": 0.50,
    # The former spent 90 to 93 % of their budget after the last keep that exceeded twice their noise.
    "drought": 0.50,
    # One in 186 published experiments failed; a quarter of the budget is far from that.
    "failures": 0.25,
}
"""From which share on a symptom is one; a share is of the run, between 0 and 1, and more is worse."""

FEWEST = 4
"""With fewer proposals than this nothing is diagnosed: any habit looks like fixation."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run did with one constant.

    Attributes:
        tries: proposals that changed it.
        up: of these, how many raised it.
        down: how many lowered it.
        keeps: how many were kept.
        failures: how many got no score.
        gain: the best of them over its own parent, in units of the metric, positive is better; `None` without a score.
    """

    constant: str
    tries: int
    up: int
    down: int
    keeps: int
    failures: int
    gain: float | None


@dataclass(frozen=True, slots=True)
class Digest:
    """A run in figures.

    Attributes:
        run: its id.
        measures: see `traces.stagnation`.
        noise: the noise floor of its study, `None` if it was not measured.
        baseline: score of the unchanged surface.
        best: score of the best kept experiment.
        running_best: the experiments that were the best when they were kept, and their scores, oldest first.
        keeps: how many proposals were kept.
        significant: how many of these improved by more than twice the noise floor; `None` if that was not measured.
        failures: how many proposals got no score, by status.
        tried: how many different moves were made: pairs of a constant and a direction.
        possible: how many there are: two for a number, one for a choice.
        constants: one tally for each constant of the space, in its order.
    """

    run: str
    measures: Stagnation
    noise: float | None
    baseline: float | None
    best: float | None
    running_best: tuple[tuple[int, float], ...]
    keeps: int
    significant: int | None
    failures: dict[str, int]
    tried: int
    possible: int
    constants: tuple[Tally, ...]


@dataclass(frozen=True, slots=True)
class Symptom:
    """One way in which a search is stuck.

    Attributes:
        value: the share that was measured.
        threshold: from which on it is a symptom.
        evidence: one sentence with the figures.
    """

    name: SymptomName
    value: float
    threshold: float
    evidence: str

    @property
    def severity(self) -> float:
        """How far past the threshold: 0 at it, 1 at the worst there can be."""
        return (self.value - self.threshold) / (1 - self.threshold)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Where a search is stuck.

    Attributes:
        symptoms: the severest first.
        text: for people and for models.
    """

    digest: Digest
    symptoms: tuple[Symptom, ...]
    text: str


_RUN = """
SELECT study.noise AS noise
FROM run JOIN study ON study.id = run.study
WHERE run.id = ?
"""

_EXPERIMENTS = """
SELECT index, status, significant, score
FROM experiment
WHERE run = ? AND step = 'decided'
ORDER BY index
"""

# One row for each constant that an experiment moved.
_MOVES = """
SELECT move.value->>'$.constant' AS constant, move.value->>'$.direction' AS direction,
       experiment.status AS status, parent.score - experiment.score AS fall
FROM experiment
LEFT JOIN experiment AS parent ON parent.run = experiment.run AND parent.index = experiment.parent,
     json_each(experiment.moves) AS move
WHERE experiment.run = ? AND experiment.step = 'decided' AND experiment.index > 0
"""


def digest_of(reader: Reader, run: str, task: TaskView) -> Digest:
    """Reads the decided experiments of a run, those it inherited counted in.

    Raises:
        UserError: there is no such run.
    """
    runs = reader.rows(_RUN, run)
    if not runs:
        raise UserError(f"no run {run} in the record: `bilevel status` names those that there are")
    sign = 1 if task.direction == "minimize" else -1
    experiments = reader.rows(_EXPERIMENTS, run)
    running_best: list[tuple[int, float]] = []
    for row in experiments:
        if row["status"] in ("baseline", "keep") and row["score"] is not None:
            if not running_best or sign * (running_best[-1][1] - row["score"]) > 0:
                running_best.append((row["index"], row["score"]))
    keeps = [row for row in experiments if row["status"] == "keep"]
    noise = runs[0]["noise"]
    moves = reader.rows(_MOVES, run)
    return Digest(
        run=run,
        measures=measure(reader, run, task.constants),
        noise=noise,
        baseline=experiments[0]["score"] if experiments else None,
        best=running_best[-1][1] if running_best else None,
        running_best=tuple(running_best),
        keeps=len(keeps),
        significant=None if noise is None else sum(bool(row["significant"]) for row in keeps),
        failures=dict(Counter(row["status"] for row in experiments if row["status"] in FAILED)),
        tried=len({(move["constant"], move["direction"]) for move in moves}),
        possible=sum(1 if constant.kind == "choice" else 2 for constant in task.constants.values()),
        constants=tuple(_tally(name, [m for m in moves if m["constant"] == name], sign) for name in task.constants),
    )


def _tally(constant: str, moves: Sequence[Mapping[str, Any]], sign: int) -> Tally:
    gains = [sign * move["fall"] for move in moves if move["fall"] is not None]
    return Tally(
        constant=constant,
        tries=len(moves),
        up=sum(move["direction"] == "up" for move in moves),
        down=sum(move["direction"] == "down" for move in moves),
        keeps=sum(move["status"] == "keep" for move in moves),
        failures=sum(move["status"] in FAILED for move in moves),
        gain=max(gains, default=None),
    )


def diagnose(digest: Digest) -> Diagnosis:
    """Says which symptoms a run shows, and by which figures."""
    proposals = digest.measures.proposals
    if proposals < FEWEST:
        return Diagnosis(digest, (), f"{proposals} proposals are too few to say where the search is stuck.")
    shown = [s for s in _measured(digest) if s.value >= s.threshold]
    shown.sort(key=lambda symptom: -symptom.severity)
    sentences = [symptom.evidence for symptom in shown] or ["No measure of being stuck is past its threshold."]
    return Diagnosis(digest, tuple(shown), f"Of {proposals} proposals {digest.keeps} were kept. " + " ".join(sentences))


def _measured(digest: Digest) -> Iterator[Symptom]:
    """Every symptom that can be measured, whether or not it is past its threshold."""
    measures, proposals = digest.measures, digest.measures.proposals
    if (repeated := measures.repeated) is not None:
        text = f"It repeats itself: {repeated:.0%} of the proposals set again what an earlier one had set."
        yield _symptom("repetition", repeated, text)
    favourite = max(digest.constants, key=lambda tally: tally.tries)
    if (same := measures.same_constant) is not None and favourite.tries:
        text = f"It is fixated: {same:.0%} of the proposals change the constant of the one before"
        yield _symptom("fixation", same, f"{text}, and {favourite.tries} of {proposals} change {favourite.constant}.")
    # A constant that was moved once has had no occasion to turn.
    moves = [(tally.up, tally.down) for tally in digest.constants if tally.up + tally.down > 1]
    if moves:
        usual, total = sum(map(max, moves)), sum(map(sum, moves))
        text = f"It moves one way: {usual} of {total} moves go in the usual direction of their constant."
        yield _symptom("one_way", usual / total, text)
    could = min(digest.possible, proposals)
    text = f"It looks at little: it made {digest.tried} different moves where it could have made {could}."
    yield _symptom("uncovered", 1 - digest.tried / could, text)
    if digest.keeps and digest.significant is not None:
        lucky = digest.keeps - digest.significant
        text = f"It keeps luck: {lucky} of {digest.keeps} keeps improve by less than twice the noise floor."
        yield _symptom("luck", lucky / digest.keeps, text)
    if digest.significant is None:
        text = f"It has run dry: {measures.longest_without_keep} proposals in a row were not kept."
        yield _symptom("drought", measures.longest_without_keep / proposals, text)
    else:
        text = f"It has run dry: {measures.since_significant} proposals since the last gain that exceeds noise."
        yield _symptom("drought", measures.since_significant / proposals, text)
    if (failing := measures.failure_rate) is not None:
        kinds = ", ".join(f"{count} {status}" for status, count in digest.failures.items())
        yield _symptom("failures", failing, f"It fails: {failing:.0%} of the proposals got no score ({kinds}).")


def _symptom(name: SymptomName, value: float, evidence: str) -> Symptom:
    return Symptom(name, value, THRESHOLDS[name], evidence)

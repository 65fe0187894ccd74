"""The scorer gives known answers, and no score to what no score can mean anything for."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inner.scorer import Scorer
from inner.task import Scoring
from traces.errors import CorpusError

VOCAB, CONTEXT, ROWS, BLOCKS = 64, 16, 32, 3
SCORING = Scoring(tokens=BLOCKS * ROWS * CONTEXT, rows=ROWS)


@pytest.fixture
def corpus(make_corpus):
    return make_corpus(vocab=VOCAB)


@pytest.fixture
def scorer(corpus):
    return Scorer(corpus, "validation", SCORING, CONTEXT)


def reference(scorer, corpus, model):
    """Bits per byte in float64, one token at a time, straight from the definition."""
    bits, size = 0.0, 0
    for block, targets in zip(scorer.inputs, scorer.targets, strict=True):
        logits = model(block).astype(np.float64)
        for row in range(ROWS):
            for place, target in enumerate(targets[row]):
                if target == corpus.bos:
                    continue
                scores = logits[row, place]
                highest = scores.max()
                bits -= (scores[target] - highest - math.log(sum(math.exp(s - highest) for s in scores))) / math.log(2)
                size += int(corpus.token_bytes[target])
    return bits / size


def zeros(block):
    return np.zeros((*block.shape, VOCAB), np.float32)


def bigram(seed=0, spread=2.0):
    table = np.random.default_rng(seed).normal(0, spread, (VOCAB, VOCAB)).astype(np.float32)
    return lambda block: table[block]


def probe(score, what):
    return next(p for p in score.probes if p.what == what)


# Known answers.


def test_a_model_that_knows_nothing_needs_log2_of_the_vocabulary_a_token(scorer, corpus):
    counted = scorer.targets[scorer.targets != corpus.bos]
    known = math.log2(VOCAB) * counted.size / int(corpus.token_bytes[counted].sum())
    score = scorer.score(zeros)
    assert score.bits_per_byte == pytest.approx(known, rel=1e-6)
    assert score.failed is None


def test_a_model_that_knows_the_source_needs_its_entropy(make_corpus):
    rng = np.random.default_rng(1)
    chances = rng.dirichlet(np.full(VOCAB, 0.3), VOCAB)
    chances[:, 0] = 0
    chances /= chances.sum(1, keepdims=True)
    ids = [0]
    while len(ids) < 30_000:
        ids.append(int(rng.choice(VOCAB, p=chances[ids[-1]])))
    corpus = make_corpus(vocab=VOCAB, lengths=np.ones(VOCAB), validation=ids)
    tokens = 50 * ROWS * CONTEXT
    score = Scorer(corpus, "validation", Scoring(tokens=tokens, rows=ROWS), CONTEXT).score(
        lambda block: np.log(chances[block] + 1e-30).astype(np.float32)
    )
    entropies = -(chances * np.log2(chances, where=chances > 0, out=np.zeros_like(chances))).sum(1)
    entropy = entropies[np.array(ids)].mean()  # of the places that the source has been in
    assert score.bits_per_byte == pytest.approx(entropy, rel=0.02)
    assert score.failed is None


def test_a_model_that_is_right_and_sure_needs_nothing(make_corpus):
    ids = [1 + i % (VOCAB - 1) for i in range(4000)]
    corpus = make_corpus(vocab=VOCAB, validation=ids)
    sure = 100 * np.eye(VOCAB, dtype=np.float32)
    scorer = Scorer(corpus, "validation", SCORING, CONTEXT)
    score = scorer.score(lambda block: sure[1 + block % (VOCAB - 1)])
    assert score.bits_per_byte == pytest.approx(0, abs=1e-9)
    assert score.failed is None


@pytest.mark.parametrize("seed", range(3))
def test_any_model_gets_what_the_definition_gives_it(scorer, corpus, seed):
    model = bigram(seed, spread=3.0)
    score = scorer.score(model)
    assert score.bits_per_byte == pytest.approx(reference(scorer, corpus, model), rel=1e-6)
    assert score.failed is None


def test_a_vocabulary_that_does_not_fit_the_chunks_changes_nothing(make_corpus):
    vocab = 5000
    corpus = make_corpus(vocab=vocab)
    table = np.random.default_rng(3).normal(size=(vocab, 8)).astype(np.float32)
    scorer = Scorer(corpus, "validation", SCORING, CONTEXT)
    score = scorer.score(lambda block: table[block] @ table.T)
    assert score.bits_per_byte == pytest.approx(reference(scorer, corpus, lambda b: table[b] @ table.T), rel=1e-6)


def test_what_begins_a_document_is_no_text(scorer, corpus):
    """However bad a model is at guessing where documents begin, it costs nothing, and the rest costs the same."""
    assert (scorer.targets == corpus.bos).any()
    model = bigram()

    def never_begins(block):
        logits = model(block).copy()
        logits[..., corpus.bos] = -60
        return logits

    given_all = scorer.score(never_begins).bits_per_byte
    assert given_all == pytest.approx(reference(scorer, corpus, never_begins), rel=1e-6)
    assert given_all < scorer.score(model).bits_per_byte


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(-50, 50))
def test_what_is_added_to_all_logits_of_a_place_changes_nothing(scorer, shift):
    model = bigram()

    def shifted(block):
        return model(block) + np.float32(shift) * np.cos(np.arange(block.shape[1], dtype=np.float32))[:, None]

    score = scorer.score(shifted)
    assert score.bits_per_byte == pytest.approx(scorer.score(model).bits_per_byte, rel=2e-5)
    assert score.failed is None


# What is asked.


def test_the_targets_are_the_tokens_that_follow(scorer, corpus):
    stream = corpus.tokens("validation").astype(int)
    following = {tuple(stream[i : i + CONTEXT + 1]) for i in range(len(stream) - CONTEXT)}
    rows = zip(scorer.inputs.reshape(-1, CONTEXT), scorer.targets.reshape(-1, CONTEXT), strict=True)
    for inputs, targets in rows:
        assert (*inputs.tolist(), int(targets[-1])) in following
        assert inputs[1:].tolist() == targets[:-1].tolist()


def test_no_token_is_judged_twice_and_the_whole_split_is_reached(make_corpus):
    vocab = 60_000
    ids = np.arange(1, 4001)
    scorer = Scorer(make_corpus(vocab=vocab, validation=ids), "validation", SCORING, CONTEXT)
    targets = scorer.targets.reshape(-1)
    assert len(set(targets.tolist())) >= targets.size - BLOCKS * ROWS
    assert targets.min() < 100
    assert targets.max() > 3900


def test_every_scorer_of_a_split_asks_the_same_and_splits_differ(corpus):
    one, two = (Scorer(corpus, "validation", SCORING, CONTEXT) for _ in range(2))
    sealed = Scorer(corpus, "sealed", SCORING, CONTEXT)
    assert (one.inputs == two.inputs).all()
    assert (one.inputs != sealed.inputs).any()
    assert one.score(bigram()).bits_per_byte == two.score(bigram()).bits_per_byte


@pytest.mark.parametrize("split", ["validation", "sealed"])
def test_each_split_is_probed_among_its_blocks(corpus, split):
    scorer = Scorer(corpus, split, SCORING, CONTEXT)
    asked = []

    def model(block):
        asked.append(block.copy())
        return zeros(block)

    score = scorer.score(model)
    assert [p.what for p in score.probes] == ["finite", "causal", "stateless"]
    known = {block.tobytes() for block in scorer.inputs}
    assert len(asked) == BLOCKS + 2
    altered = [block for block in asked if block.tobytes() not in known]
    assert len(altered) == 1  # the causal probe; the stateless one is a block sent again, the last of all
    assert asked[-1].tobytes() in {block.tobytes() for block in asked[:-1]}


def test_the_causal_probe_keeps_the_beginning_of_each_row_and_cuts_each_elsewhere(scorer):
    cuts = set()
    for _ in range(3):
        asked = []

        def model(block, asked=asked):
            asked.append(block.copy())
            return zeros(block)

        scorer.score(model)
        known = {block.tobytes() for block in scorer.inputs}
        altered = next(block for block in asked if block.tobytes() not in known)
        original = max(scorer.inputs, key=lambda block: int((block[:, 0] == altered[:, 0]).sum()))
        assert (original[:, 0] == altered[:, 0]).all()
        cuts |= {int(np.argmin(same)) for same in original == altered if not same.all()}
    assert len(cuts) > 5


def test_the_probes_come_at_places_that_are_not_known_beforehand(scorer):
    places = set()
    for _ in range(40):
        asked = []
        scorer.score(lambda block, asked=asked: asked.append(block.tobytes()) or zeros(block))
        known = {block.tobytes() for block in scorer.inputs}
        places.add((next(i for i, block in enumerate(asked) if block not in known), asked.index(asked[-1])))
    assert len(places) > 3


# What is refused, and what is not.


def peeking(places):
    """A model that knows the next token wherever `places` says so."""

    def model(block):
        logits = zeros(block)
        for row, place in np.argwhere(places(block)):
            if place + 1 < block.shape[1]:
                logits[row, place, block[row, place + 1]] = 10
        return logits

    return model


PEEKS = {
    "everywhere": lambda block: np.ones_like(block, bool),
    "at every second place": lambda block: np.broadcast_to(np.arange(block.shape[1]) % 2 == 0, block.shape),
    "in every second row": lambda block: np.broadcast_to((np.arange(block.shape[0]) % 2 == 0)[:, None], block.shape),
}


@pytest.mark.parametrize("where", PEEKS)
def test_a_model_that_looks_ahead_is_refused(scorer, where):
    score = scorer.score(peeking(PEEKS[where]))
    assert score.bits_per_byte < scorer.score(zeros).bits_per_byte  # it would have paid
    assert score.failed is probe(score, "causal")


def test_a_model_that_looks_at_the_whole_row_is_refused(scorer):
    def model(block):
        logits = zeros(block)
        logits[..., 1] = block.mean(axis=1, keepdims=True)
        return logits

    assert scorer.score(model).failed.what == "causal"


def test_a_model_that_looks_back_is_not(scorer):
    def model(block):
        logits = zeros(block)
        logits[..., 1] = np.cumsum(block, axis=1) / 100
        return logits

    assert scorer.score(model).failed is None


def test_a_model_that_changes_as_it_is_asked_is_refused(scorer):
    calls = []

    def model(block):
        calls.append(1)
        logits = zeros(block)
        logits[..., 1] = len(calls)
        return logits

    assert not probe(scorer.score(model), "stateless").passed


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38, -3e38])
def test_one_number_that_is_not_finite_and_one_loss_that_is_not_are_no_score(scorer, bad):
    calls = []

    def model(block):
        calls.append(1)
        logits = zeros(block)
        logits[0, 0, 5] = 3e38 if bad == -3e38 else 0
        logits[0, 0, scorer.targets[-1, 0, 0] if abs(bad) == 3e38 else 3] = bad
        return logits if len(calls) >= BLOCKS else zeros(block)

    score = scorer.score(model)
    if bad == 3e38:  # a sure model, however sure, is a model
        assert math.isfinite(score.bits_per_byte)
    else:
        assert score.failed.what == "finite"
        assert math.isnan(score.bits_per_byte)


@pytest.mark.parametrize(("noise", "passes"), [(0.001, True), (1.0, False)])
def test_noise_passes_up_to_the_tolerance(scorer, noise, passes):
    rng = np.random.default_rng(0)
    score = scorer.score(lambda block: zeros(block) + rng.normal(0, noise, (*block.shape, VOCAB)).astype(np.float32))
    assert all(probe(score, what).passed is passes for what in ("causal", "stateless"))
    assert all(p.tolerance == SCORING.tolerance for p in score.probes[1:])


def test_a_model_that_always_says_the_same_is_legal(scorer, corpus):
    table = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)

    def model(block):
        return np.broadcast_to(table, (*block.shape, VOCAB))

    score = scorer.score(model)
    assert score.failed is None
    assert score.bits_per_byte == pytest.approx(reference(scorer, corpus, model), rel=1e-6)


def reusing(model):
    """The same model, which gives all its answers in one array."""
    answers = np.empty((ROWS, CONTEXT, VOCAB), np.float32)

    def again(block):
        answers[:] = model(block)
        return answers

    return again


def test_the_array_of_the_answer_may_be_used_again(scorer):
    again = scorer.score(reusing(bigram()))
    assert again.bits_per_byte == scorer.score(bigram()).bits_per_byte
    assert again.failed is None


def test_an_array_that_is_used_again_hides_nothing(scorer):
    assert not probe(scorer.score(reusing(peeking(PEEKS["everywhere"]))), "causal").passed
    calls = []

    def changing(block):
        calls.append(1)
        return bigram(seed=len(calls))(block)

    assert not probe(scorer.score(reusing(changing)), "stateless").passed


def test_what_is_judged_is_what_is_compared(corpus):
    """An answer that is rewritten while it is being judged must not be scored as one thing and compared as another."""
    scorer = Scorer(corpus, "validation", Scoring(tokens=ROWS * CONTEXT, rows=ROWS), CONTEXT)

    class Shifty(np.ndarray):
        def copy(self, order="C"):
            return zeros(self[..., 0]) if self.ndim == 3 else super().copy(order)

    asked = []

    def model(block):
        logits = zeros(block)
        if not asked:
            np.put_along_axis(logits, scorer.targets[0][..., None].astype(int), 50, axis=-1)
        asked.append(block)
        return logits.view(Shifty)

    score = scorer.score(model)
    assert score.failed is not None or score.bits_per_byte > 1


def test_too_small_a_split_is_an_error_of_the_corpus(make_corpus):
    corpus = make_corpus(vocab=VOCAB, validation=[1] * SCORING.tokens, sealed=[1] * (SCORING.tokens + 1))
    with pytest.raises(CorpusError, match=r"validation of .* has 1,536 tokens, scoring needs 1,537"):
        Scorer(corpus, "validation", SCORING, CONTEXT)
    assert Scorer(corpus, "sealed", SCORING, CONTEXT).score(zeros).failed is None


def test_a_split_without_text_is_an_error_of_the_corpus(make_corpus):
    with pytest.raises(CorpusError, match="holds no text"):
        Scorer(make_corpus(vocab=VOCAB, validation=[0] * 4000), "validation", SCORING, CONTEXT)


def test_a_block_of_one_row_is_scored_and_probed(make_corpus):
    corpus = make_corpus(vocab=VOCAB)
    scorer = Scorer(corpus, "validation", Scoring(tokens=2 * CONTEXT, rows=1), CONTEXT)
    assert scorer.score(bigram()).failed is None

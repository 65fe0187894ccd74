"""The sealed metric: bits per byte, computed outside the candidate's process from the logits that it returns.

For a block of tokens the candidate gives logits; log-softmax, loss and sum are ours. A token's loss in nats becomes
bits, and the sum is divided by the bytes of the text that was predicted (bytes of each token's own raw bytes, so that
no tokenizer can flatter the figure). The token that begins a document stands for no text and is left out of both sums.

A number is a score only if it means what it says, so the scorer also asks things that a sound model cannot fail:

- *finite*: every logit is a finite number; normalising is done here.
- *causal*: with the rest of every row replaced by other text, the log-probabilities before the cut stay the same.
- *stateless*: a block that was sent before gives the same log-probabilities again.

The two probes are sent among the blocks that count, at places that only the scorer knows.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inner.corpus import Corpus
from inner.task import Scoring
from traces.errors import CorpusError

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
Exchange = Callable[[Tokens], Logits]

_CHUNK = 2**19  # logits that are worked on at a time: 2 MB, so that they stay in the processor's cache


@dataclass(frozen=True)
class Probe:
    """One check of what a score must mean: `measured` (nats, or a count for `finite`) may not exceed `tolerance`."""

    what: str
    measured: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the check holds; NaN does not."""
        return self.measured <= self.tolerance


@dataclass(frozen=True)
class Score:
    """A score and its checks. `bits_per_byte` is NaN where `finite` failed."""

    bits_per_byte: float
    tokens: int
    probes: tuple[Probe, ...]

    @property
    def failed(self) -> Probe | None:
        """The first check that does not hold."""
        return next((probe for probe in self.probes if not probe.passed), None)


class Scorer:
    """Scores one split of a corpus, always on the same tokens in the same blocks."""

    def __init__(self, corpus: Corpus, split: str, scoring: Scoring, context: int) -> None:
        """Takes rows that lie evenly over the split, so that no few documents decide; `scoring.tokens` tokens in all.

        Raises:
            CorpusError: the split is too small for that, or holds no text.
        """
        stream = corpus.tokens(split)
        if len(stream) < scoring.tokens + 1:
            raise CorpusError(
                f"{split} of {corpus.folder} has {len(stream):,} tokens, scoring needs {scoring.tokens + 1:,}: "
                "use a larger corpus or lower scoring.tokens"
            )
        shape = (-1, scoring.rows, context)
        starts = np.linspace(0, len(stream) - context - 1, scoring.tokens // context).astype(int)
        used = np.stack([stream[start : start + context + 1] for start in starts]).astype(np.int32)
        self.inputs: Tokens = used[:, :-1].reshape(shape)
        self.targets: Tokens = used[:, 1:].reshape(shape)
        self.bytes = corpus.token_bytes[self.targets].astype(np.int64)
        if not self.bytes.any():
            raise CorpusError(f"{split} of {corpus.folder} holds no text: use another corpus")
        self.shape = (scoring.rows, context, corpus.vocab_size)
        self.tolerance = scoring.tolerance
        self._stream = stream

    def score(self, exchange: Exchange) -> Score:
        """Asks for the logits of every block and of the probes.

        Args:
            exchange: gives the logits (rows, context, vocabulary) of a block (rows, context). The array may be reused
                for the next answer.
        """
        count, (rows, context, _) = len(self.inputs), self.shape
        causal_block, stateless_block = (secrets.randbelow(count) for _ in range(2))
        # Each probe comes after its block, so that there is something to compare with.
        causal_after = causal_block + secrets.randbelow(count - causal_block)
        # Every row is cut elsewhere: what looks ahead at some places only has as many chances to be seen.
        cuts = [1 + secrets.randbelow(context - 1) for _ in range(rows)]
        nats = 0.0
        kept: dict[str, Logits] = {}
        causal = math.nan
        for index, (block, targets) in enumerate(zip(self.inputs, self.targets, strict=True)):
            logits = exchange(block)
            if index in (causal_block, stateless_block):
                # Before they are judged: the candidate can write to the array that it answered in.
                logits = logits.copy()
            nats += self._losses(logits, targets, self.bytes[index] > 0)
            if not math.isfinite(nats):
                return Score(math.nan, 0, (Probe("finite", 1, 0),))
            if index == causal_block:
                kept["causal"] = logits
            if index == stateless_block:
                kept["stateless"] = logits
            if index == causal_after:
                before, after = kept.pop("causal"), exchange(self._other_text(self.inputs[causal_block], cuts))
                pairs = zip(before, after, cuts, strict=True)
                causal = max(_difference(one[:cut], other[:cut]) for one, other, cut in pairs)
        again = exchange(self.inputs[stateless_block])
        stateless = max(map(_difference, kept["stateless"], again))
        probes = (
            Probe("finite", 0, 0),
            Probe("causal", causal, self.tolerance),
            Probe("stateless", stateless, self.tolerance),
        )
        return Score(nats / math.log(2) / int(self.bytes.sum()), self.targets.size, probes)

    def _losses(self, logits: Logits, targets: Tokens, counted: npt.NDArray[np.bool_]) -> float:
        """Sum of the losses of the counted tokens, in nats; NaN if any logit, or any loss, is not finite."""
        flat, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        weights = counted.reshape(-1)
        nats = 0.0
        step = max(1, _CHUNK // flat.shape[-1])
        for begin in range(0, len(flat), step):
            # A copy, for the same reason.
            chunk = flat[begin : begin + step].copy()
            highest = chunk.max(axis=-1)
            if not (np.isfinite(highest).all() and np.isfinite(chunk.min())):
                return math.nan
            with np.errstate(over="ignore"):
                wanted_logits = chunk[np.arange(len(chunk)), wanted[begin : begin + step]] - highest
                np.subtract(chunk, highest[:, None], out=chunk)
            np.exp(chunk, out=chunk)
            losses = np.log(chunk.sum(axis=-1, dtype=np.float32)) - wanted_logits
            if not np.isfinite(losses).all():
                return math.nan
            nats += float(np.dot(losses.astype(np.float64), weights[begin : begin + step]))
        return nats

    def _other_text(self, block: Tokens, cuts: list[int]) -> Tokens:
        """The block with everything from each row's cut on replaced by other text of the split."""
        other = block.copy()
        context = block.shape[1]
        for row, cut in enumerate(cuts):
            start = secrets.randbelow(len(self._stream) - context + 1)
            other[row, cut:] = self._stream[start + cut : start + context]
        return other


def _difference(first: Logits, second: Logits) -> float:
    """Largest difference of log-probabilities, in nats, between two arrays of logits; infinite if one is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        worst = float(np.abs(_log_softmax(first) - _log_softmax(second)).max())
    return math.inf if math.isnan(worst) else worst


def _log_softmax(logits: Logits) -> Logits:
    shifted: Logits = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted

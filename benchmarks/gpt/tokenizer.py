"""A byte-level BPE, and how many bytes each of its tokens stands for.

The metric is bits over bytes, so these counts must be exact for every token, also for one that holds half a character.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from traces.errors import CorpusError

BOS = "<|bos|>"


def train_tokenizer(batches: Iterable[list[bytes]], vocab_size: int) -> Tokenizer:
    """A byte-level BPE whose only special token is `BOS`; with fewer tokens than asked if the text is too short."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # A text that happens to hold "<|bos|>" is text: it must not become a BOS, which has no bytes.
    tokenizer.encode_special_tokens = True
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(([content.decode() for content in batch] for batch in batches), trainer)
    return tokenizer


def token_lengths(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Bytes that each token stands for, shape (vocabulary,); 0 for `BOS`.

    A byte-level vocabulary writes every byte as one character of an alphabet of 256. So a token has as many bytes as
    its name has characters, whether or not they are valid UTF-8 by themselves: nothing is decoded.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    assert len(alphabet) == 256
    lengths = np.zeros(tokenizer.get_vocab_size(), dtype=np.int32)
    for name, index in tokenizer.get_vocab().items():
        if name != BOS:
            assert alphabet.issuperset(name), name
            lengths[index] = len(name)
    return lengths


def encode(tokenizer: Tokenizer, lengths: NDArray[np.int32], contents: list[bytes]) -> NDArray[np.uint16]:
    """The token ids of some documents, joined, each begun by `BOS`.

    Raises:
        CorpusError: the tokens of a document do not stand for all of its bytes.
    """
    bos = np.array([tokenizer.token_to_id(BOS)], dtype=np.uint16)
    pieces = []
    encodings = tokenizer.encode_batch_fast([content.decode() for content in contents], add_special_tokens=False)
    for content, encoding in zip(contents, encodings, strict=True):
        ids = np.array(encoding.ids, dtype=np.uint16)
        if int(lengths[ids].sum()) != len(content):
            raise CorpusError(f"the tokenizer does not cover the document that begins {content[:40]!r}: report this")
        pieces += [bos, ids]
    return np.concatenate(pieces)

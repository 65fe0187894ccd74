"""Every byte of every text is counted exactly once, whatever the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpt.tokenizer import BOS, encode, token_lengths, train_tokenizer

TEXT = "def f(x):\n    return [naïve for _ in '日本語 😀😀']  # <|bos|> ...\n".encode()
TOKENIZER = train_tokenizer([[TEXT * 3, TEXT]], 300)
LENGTHS = token_lengths(TOKENIZER)

# The byte-level alphabet, worked out here by its definition: printable bytes stand for themselves, the others for the
# characters from 256 on, in order.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_OF = {chr(b): b for b in PRINTABLE} | {
    chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in PRINTABLE)
}


def raw(ids: list[int]) -> bytes:
    return b"".join(bytes(BYTE_OF[c] for c in TOKENIZER.id_to_token(i)) for i in ids)


@given(st.text())
def test_the_tokens_of_any_text_stand_for_its_bytes(text):
    first, *ids = encode(TOKENIZER, LENGTHS, [text.encode()]).tolist()
    assert first == TOKENIZER.token_to_id(BOS)
    assert raw(ids) == text.encode()
    assert LENGTHS[ids].sum() == len(text.encode())


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_documents_encoded_together_are_those_encoded_apart(texts):
    contents = [text.encode() for text in texts]
    apart = [token for content in contents for token in encode(TOKENIZER, LENGTHS, [content]).tolist()]
    assert encode(TOKENIZER, LENGTHS, contents).tolist() == apart


def test_each_length_is_the_number_of_raw_bytes():
    bos = TOKENIZER.token_to_id(BOS)
    assert len(LENGTHS) == TOKENIZER.get_vocab_size() == 300
    assert [LENGTHS[i] for i in range(300) if i != bos] == [len(raw([i])) for i in range(300) if i != bos]
    assert LENGTHS[bos] == 0


def test_some_tokens_hold_less_than_a_character():
    # Decoded, such a token would be a replacement character of three bytes: the reason why lengths come from raw bytes.
    (index,) = (i for i in range(300) if i != TOKENIZER.token_to_id(BOS) and raw([i]) == b"\xf0")
    assert LENGTHS[index] == 1
    assert len(TOKENIZER.decode([index]).encode()) == 3


@pytest.mark.parametrize("text", [BOS, f"a{BOS}b", BOS * 3])
def test_a_text_cannot_write_a_bos(text):
    ids = encode(TOKENIZER, LENGTHS, [text.encode()]).tolist()
    assert ids.count(TOKENIZER.token_to_id(BOS)) == 1

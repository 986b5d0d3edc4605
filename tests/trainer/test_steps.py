"""Character spans of a text against the tokens it was sampled as, with tokens that cut characters in two."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.training.token_spans import token_ends, token_span


def decoder(pieces):
    """Decodes positions into ``pieces`` (bytes) as byte-level tokenizers do: broken characters show as �."""
    return lambda ids: b"".join(pieces[at] for at in ids).decode("utf-8", errors="replace")


@st.composite
def texts(draw):
    """A text and a way to cut its bytes into tokens."""
    text = draw(st.text(alphabet="ab é😀\nfi中", max_size=14))
    data = text.encode()
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=10))})
    return text, [data[a:b] for a, b in pairwise(cuts)]


def slow_ends(text, pieces):
    """Characters that are whole once a token is there; the last token closes everything."""
    sizes = [len(character.encode()) for character in text]
    ends, read = [], 0
    for at, piece in enumerate(pieces):
        read += len(piece)
        whole = total = 0
        for size in sizes:
            total += size
            whole += total <= read
        ends.append(len(text) if at + 1 == len(pieces) else whole)
    return ends


@settings(max_examples=200, deadline=None)
@given(texts())
def test_ends_are_those_of_whole_characters(given_text):
    text, pieces = given_text
    assert token_ends(range(len(pieces)), decoder(pieces)) == slow_ends(text, pieces)


@settings(max_examples=200, deadline=None)
@given(texts(), st.data())
def test_neighbouring_spans_share_no_token_and_lose_none(given_text, data):
    text, pieces = given_text
    ends = token_ends(range(len(pieces)), decoder(pieces))
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=4))})
    spans = [token_span(a, b, ends) for a, b in pairwise(borders)]
    covered = [at for first, last in spans for at in range(first, last)]
    assert covered == sorted(set(covered))
    if text:
        # Tokens that show no character of their own belong to whoever shows the rest of it, or to nobody.
        silent = {at for at, end in enumerate(ends) if end == (ends[at - 1] if at else 0)}
        assert set(range(len(pieces))) - set(covered) <= silent


@pytest.mark.parametrize(
    ("pieces", "span", "expected"),
    [
        (["Step", " 1", ":", " a", "\n", "Step", " 2", ":", " b"], (0, 9), (0, 4)),
        (["Step", " 1", ":", " a", "\n", "Step", " 2", ":", " b"], (10, 19), (5, 9)),
        (["ab", "cd"], (0, 4), (0, 2)),
        (["ab", "cd"], (1, 3), (0, 1)),  # the token that a span ends inside belongs to what follows
        (["ab", "cd"], (3, 4), (1, 2)),
        (["ab", "cd"], (2, 2), (1, 1)),
        (["abcd"], (0, 2), (0, 0)),
        (["abcd"], (2, 4), (0, 1)),
        ([], (0, 0), (0, 0)),
        (["ab"], (0, 9), (0, 1)),
    ],
)
def test_worked_examples(pieces, span, expected):
    pieces = [piece.encode() for piece in pieces]
    assert token_span(*span, token_ends(range(len(pieces)), decoder(pieces))) == expected


def test_the_work_is_linear():
    pieces = [b"ab"] * 4000
    read = 0

    def decode(ids):
        nonlocal read
        read += len(ids)
        return decoder(pieces)(ids)

    assert token_ends(range(4000), decode)[-1] == 8000
    assert read < 40 * 4000


def test_real_tokens_with_special_ones_at_the_end(tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    text = "1+1=2\nso 3<|im_end|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    ends = token_ends(
        ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )
    assert ends == [*range(1, 11), len(text)]
    assert token_span(6, len(text), ends) == (6, 11)

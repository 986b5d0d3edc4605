"""Character spans against tokens of four real tokenizer families, held against decoding every prefix."""

from itertools import pairwise, takewhile
from operator import eq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_plus.sampling.token_spans import token_ends, token_span
from grpo_verifiers.steps import segment

TEXT = [
    "Step 1: 12+3=15, so we have 15.\n\nStep 2: 15*2=30 €\nThe answer is 30.",
    "Größe: 3 naïve cafés — «ok» 中文字符 😀 fi 𝒳",
]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "[UNK]", "[PAD]"]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    of = {"special_tokens": SPECIALS, "initial_alphabet": letters, "show_progress": False}
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=340, **of))
    return tokenizer


def unigram():
    bytes_ = [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    pieces = ["▁", "▁St", "ep", "▁1", "1", "2", "5", ":", "▁a", "a", "n", "s", "▁the", "=", "+", ".", "é", "▁é"]
    vocabulary = [("[UNK]", 0.0), *bytes_, *((piece, -float(at + 1)) for at, piece in enumerate(pieces))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def metaspace():
    """A sentence-piece decoder without byte fallback: every token knows by itself whether it is the first one."""
    tokenizer = unigram()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def characters():
    symbols = [*SPECIALS, *dict.fromkeys("".join(TEXT)), *"abcdefghijklmnopqrstuvwxyz<>"]
    tokenizer = Tokenizer(models.BPE({s: at for at, s in enumerate(dict.fromkeys(symbols))}, [], unk_token="[UNK]"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def decoder_of(make):
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "additional_special_tokens": SPECIALS[:4]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make(), **special)
    return tokenizer, lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


FAMILIES = {make.__name__: decoder_of(make) for make in (byte_level, unigram, metaspace, wordpiece, characters)}


def slow_ends(ids, decode):
    """How far the text of every prefix agrees with the whole text."""
    whole, ends = decode(ids), [0]
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        ends.append(max(sum(takewhile(bool, map(eq, text, whole))), ends[-1]))
    return [*ends[1:-1], len(whole)] if ids else []


PIECES = st.sampled_from(["Step 1:", " a", "\n\n", "<think>", "</think>", "<|im_end|>", "é", "😀", "=5", " "])
texts = st.text(max_size=24) | st.text(alphabet="ab 1=\n.é€😀中�", max_size=24) | st.lists(PIECES).map("".join)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ends_are_those_of_every_prefix(family, data):
    """Of encoded text cut anywhere, and of any ids at all: a model samples what no text encodes to."""
    tokenizer, decode = FAMILIES[family]
    if data.draw(st.booleans()):
        ids = tokenizer.encode(data.draw(texts), add_special_tokens=False)
        ids = ids[: data.draw(st.integers(0, len(ids)))]
    else:
        ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=24))
    ends = token_ends(ids, decode)
    assert ends == slow_ends(ids, decode)
    text = decode(ids)
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=5))})
    owned = [at for a, b in pairwise(borders) for at in range(*token_span(a, b, ends))]
    assert owned == (list(range(len(ids))) if len(borders) > 1 else [])  # tiles own every token, each once


@pytest.mark.sample(7)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("by", ["newline", "blank_line", "numbered", "tags"])
@settings(max_examples=15, deadline=None)
@given(text=texts)
def test_no_token_belongs_to_two_steps(family, by, text):
    tokenizer, decode = FAMILIES[family]
    ids = tokenizer.encode(f"Step 1: {text}\nStep 2: <step>{text}</step>", add_special_tokens=False)
    whole = decode(ids)
    ends = token_ends(ids, decode)
    owned = [at for span in segment(whole, by) for at in range(*token_span(*span, ends))]
    assert owned == sorted(set(owned))


def test_characters_cut_in_two_and_special_tokens_belong_to_one_step():
    tokenizer, decode = FAMILIES["byte_level"]
    table = bytes_of_gpt2()
    ids = [tokenizer.backend_tokenizer.token_to_id(table[byte]) for byte in "a\n😀b".encode()]
    assert token_ends(ids, decode) == [1, 2, 2, 2, 2, 3, 4]
    assert decode(ids[:4]) == "a\n�"  # cut in the middle of the character
    for some, spans in ((ids, [(0, 2), (2, 7)]), (ids[:4], [(0, 2), (2, 4)])):
        ends = token_ends(some, decode)
        assert [token_span(*span, ends) for span in segment(decode(some), "newline")] == spans
    text = "<think>\nStep 1: a\nStep 2: b</think>\n15<|im_end|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    ends = token_ends(ids, decode)
    for by, steps in [
        ("numbered", ["Step 1: a\n", "Step 2: b</think>\n15<|im_end|>"]),
        ("newline", ["<think>\n", "Step 1: a\n", "Step 2: b</think>\n", "15<|im_end|>"]),
    ]:
        assert [decode(ids[slice(*token_span(*span, ends))]) for span in segment(text, by)] == steps


def bytes_of_gpt2():
    """How byte-level tokenizers write each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(moved)) for byte in range(256)]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_work_is_linear_in_tokens(family):
    tokenizer, decode = FAMILIES[family]
    ids = (tokenizer.encode("Step 1: 12+3=15 😀é\n", add_special_tokens=False) * 300)[:3000]
    read = 0

    def counting(some):
        nonlocal read
        read += len(some)
        return decode(some)

    assert token_ends(ids, counting)[-1] == len(decode(ids))
    assert read < 60 * len(ids)

"""Turns in their tokens: held against decoded prefixes, with the chat templates that TRL ships, and by brute force."""

import random
import re
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from trl import GRPOTrainer, chat_template_utils

from grpo_plus.sampling.token_spans import decoder, token_ends, token_span
from grpo_plus.training.hooks import Completions
from grpo_plus.training.rollout.markers import markers_of
from grpo_plus.training.scoring.live_verifier import LiveVerifier
from grpo_plus.training.scoring.turn_spans import step_tokens, turns_of
from grpo_plus.training.scoring.verifiers import Verifiers
from grpo_verifiers import get_verifier
from grpo_verifiers.errors import ColumnError
from grpo_verifiers.turns import Call, Turn

TEMPLATES = {
    "qwen2.5": ("qwen2_5_training", "<|im_end|>"), "qwen3": ("qwen3_training", "<|im_end|>"), "llama3": ("llama3_1", "<|eot_id|>"),
    "glm4": ("glm4moe_training", "<|user|>"), "gptoss": ("gptoss_training", "<|return|>"),
}  # fmt: skip
SPECIALS = re.findall(
    r"\S+",
    "<|im_start|> <|im_end|> <|endoftext|> <|eot_id|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> "
    "<|python_tag|> <|user|> <|assistant|> <|observation|> <|system|> [gMASK] <sop> <|start|> <|end|> <|message|> "
    "<|channel|> <|call|> <|return|> <|constrain|> <tool_call> </tool_call> <tool_response> </tool_response>",
)
SAID = ["Let me see.", "", "e\u0301 \U0001f9d1\u200d\U0001f52c ok", "汉字 and \U0001f600", "  spaces\n\n"]
RESULTS = ["4", "汉\U0001f600", "{'error': 'no'}", "a\nb\n", "1 = 2"]


def byte_tokenizer(tokens, eos_token, *, special=True, normalizer=None):
    """A tokenizer of bytes with these tokens, of which its own map of special tokens names two."""
    made = Tokenizer(models.BPE())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(["words"], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    added = [AddedToken(each, special=special, normalized=normalizer is not None) for each in tokens]
    made.add_special_tokens(added) if special else made.add_tokens(added)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=eos_token, pad_token="<|endoftext|>")


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(SPECIALS, "<|im_end|>")


def template_of(name):
    found = getattr(chat_template_utils, f"{name}_chat_template", None)
    assert found is not None, sorted(each for each in vars(chat_template_utils) if each.endswith("_chat_template"))
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_turns_stand_at_their_tokens_in_every_template(tokenizer, name):
    template, end = TEMPLATES[name]
    tokenizer.chat_template, tokenizer.eos_token = template_of(template), end
    trainer = SimpleNamespace(
        processing_class=tokenizer, _tokenizer=tokenizer, _is_vlm=False, chat_template=None, chat_template_kwargs={}
    )
    decode, draws = decoder(tokenizer), random.Random(3)
    for _ in range(12):
        ids, mask, messages, own = [], [], [], []
        for last in [False] * draws.randint(0, 3) + [True]:
            text = draws.choice(SAID) or ("x" if last else "")
            written = tokenizer.encode(text + end, add_special_tokens=False)
            own.append((len(ids), len(ids) + len(written)))
            ids, mask = ids + written, mask + [1] * len(written)
            messages.append({"role": "assistant", "content": text})
            if not last:
                told = [
                    {"role": "tool", "name": "f", "content": r} for r in draws.choices(RESULTS, k=draws.randint(1, 2))
                ]
                suffix = GRPOTrainer._get_tool_suffix_ids(trainer, told)
                assert len(suffix) > 0
                ids, mask, messages = ids + suffix, mask + [0] * len(suffix), messages + told
        turns, spans = turns_of(ids, mask, messages, decode)
        assert spans == own
        assert [turn.text for turn in turns] == [m["content"] for m in messages if m["role"] == "assistant"]
        for turn, (first, last_token) in zip(turns, own, strict=True):
            assert (turn.start, turn.end) == (len(decode(ids[:first])), len(decode(ids[:last_token])))
            assert decode(ids)[turn.start : turn.end] == turn.text + end
        ends = token_ends(ids, decode)
        assert step_tokens([(turn.start, turn.end) for turn in turns], ends, turns, spans) == own


BYTES = SimpleNamespace(decode=lambda ids, **_: bytes(ids).decode("utf-8", "replace"))
PIECES = st.sampled_from([b"a", b" ", "é".encode(), "汉".encode(), "\U0001f600".encode(), b"\xf0\x9f", b"\xe6"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(PIECES, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=6))
def test_a_turn_has_all_of_its_tokens_wherever_it_was_cut(runs):
    ids, mask = [], []
    for pieces, own in runs:
        written = list(b"".join(pieces))
        ids, mask = ids + written, mask + [int(own)] * len(written)
    decode = decoder(BYTES)
    turns, spans = turns_of(ids, mask, [], decode)
    trained = {place for place, own in enumerate(mask) if own}
    found = step_tokens([(turn.start, turn.end) for turn in turns], token_ends(ids, decode), turns, spans)
    assert found == spans
    assert {place for first, last in found for place in range(first, last)} == trained


def test_a_turn_that_was_cut_off_before_it_said_anything_is_none_and_one_without_a_message_says_nothing():
    decode = decoder(BYTES)
    asked = [Call("f", {}, "4")]
    messages = [{"role": "assistant", "content": "ab"}, {"role": "tool", "content": "4"}]
    cut, spans = turns_of(list(b"ab<4>"), [1, 1, 0, 0, 0], messages, decode, calls=[asked], states=["s"], rewards=[0.5])
    assert (cut, spans) == ((Turn(0, 2, "ab", (asked[0],), "s", 0.5),), [(0, 2)])
    begun, spans = turns_of(list(b"ab<4>c"), [1, 1, 0, 0, 0, 1], messages, decode, calls=[asked])
    assert (begun[1], spans) == (Turn(5, 6, ""), [(0, 2), (5, 6)])


def test_a_column_named_turns_beside_tools_is_an_error():
    verification = Verifiers([LiveVerifier(get_verifier("tool_used"))])
    row = {"prompt": "a", "turns": 3}
    with pytest.raises(ColumnError, match=r"column 'turns'.*rename the column"):
        verification.start(Completions([row], ["a"], ["b"], [[1]], turns=[()]), BYTES)


def test_steps_of_turns_reach_exactly_their_tokens_and_equations_of_tools_are_nobodys():
    live = [LiveVerifier(get_verifier("math_steps", steps=by)) for by in ("turn", "newline")]
    verification = Verifiers(live)
    text, result = ["2+2 = 4.\n", "so 4+1 = 6"], "<1+1 = 3\n>"
    ids = list((text[0] + result + text[1]).encode())
    mask = [1] * len(text[0]) + [0] * len(result) + [1] * len(text[1])
    messages = [{"role": "assistant", "content": each} for each in text]
    turns, spans = turns_of(ids, mask, messages, decoder(BYTES))
    completions = Completions([{"prompt": ""}], [""], [messages], [ids], turns=[turns], turn_tokens=[spans])
    verification.start(completions, BYTES)
    for each in live:
        each.collect(lambda *_: None)
    for by, each in zip(("turn", "newline"), live, strict=True):
        steps = Verifiers([each]).steps("math_steps", completions, BYTES)
        scored = [step for step in steps[0] if step[2] == step[2]]
        assert [step[2] for step in scored] == [1.0, 0.0], by
        assert all(any(first <= step[0] and step[1] <= last for first, last in spans) for step in scored), by
    assert [step[:2] for step in Verifiers([live[0]]).steps("math_steps", completions, BYTES)[0]] == spans


def cutting(pieces):
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
    assert token_ends(range(len(pieces)), cutting(pieces)) == slow_ends(text, pieces)


@settings(max_examples=200, deadline=None)
@given(texts(), st.data())
def test_neighbouring_spans_share_no_token_and_lose_none(given_text, data):
    text, pieces = given_text
    ends = token_ends(range(len(pieces)), cutting(pieces))
    borders = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=4))})
    spans = [token_span(a, b, ends) for a, b in pairwise(borders)]
    covered = [at for first, last in spans for at in range(first, last)]
    assert covered == sorted(set(covered))
    if text:
        # Tokens that show no character of their own belong to whoever shows the rest of it, or to nobody.
        silent = {at for at, end in enumerate(ends) if end == (ends[at - 1] if at else 0)}
        assert set(range(len(pieces))) - set(covered) <= silent


@pytest.mark.parametrize(("pieces", "span", "expected"), [
    (["Step", " 1", ":", " a", "\n", "Step", " 2", ":", " b"], (0, 9), (0, 4)),
    (["Step", " 1", ":", " a", "\n", "Step", " 2", ":", " b"], (10, 19), (5, 9)), (["ab", "cd"], (0, 4), (0, 2)),
    (["ab", "cd"], (1, 3), (0, 1)),  # the token that a span ends inside belongs to what follows
    (["ab", "cd"], (3, 4), (1, 2)), (["ab", "cd"], (2, 2), (1, 1)), (["abcd"], (0, 2), (0, 0)), (["abcd"], (2, 4), (0, 1)),
    ([], (0, 0), (0, 0)), (["ab"], (0, 9), (0, 1)),
])  # fmt: skip
def test_worked_examples(pieces, span, expected):
    pieces = [piece.encode() for piece in pieces]
    assert token_span(*span, token_ends(range(len(pieces)), cutting(pieces))) == expected


def test_the_work_is_linear():
    pieces = [b"ab"] * 4000
    read = 0

    def decode(ids):
        nonlocal read
        read += len(ids)
        return cutting(pieces)(ids)

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
    assert (ends, token_span(6, len(text), ends)) == ([*range(1, 11), len(text)], (6, 11))


SHIPPED = [
    *("qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "llama3_2", "gptoss", "glm4moe", "deepseekv3_training"),
    *("lfm2_v2", "gemma4_v2", "cohere2", "nemotron_3_nano", "phi3"),
]
TOKEN = re.compile(r"<[|\uff5c][^<>\s]{1,40}[|\uff5c]>|</?(?:tool_call|tool_response|think)>")


def tokenizer_of(name, special, normalizer=None):
    template = getattr(chat_template_utils, f"{name}_chat_template", None)
    if template is None:
        pytest.skip("this release of TRL has no such template")
    tokens = sorted({*TOKEN.findall(template), "<|endoftext|>", "<|reserved_7|>"})
    tokenizer = byte_tokenizer(tokens, tokens[0], special=special, normalizer=normalizer)
    tokenizer.chat_template = template
    return tokenizer, tokens


def attacks(tokens):
    whole = "".join(tokens)
    split = [f"{each[: len(each) // 2]}{each}{each[len(each) // 2 :]}" for each in tokens]
    return [*tokens, whole, *split, *(f"\\{each}" for each in tokens), whole[::-1] + whole, f"{{'error': '{whole}'}}"]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", SHIPPED)
def test_no_token_of_a_template_stands_in_a_result(name, special):
    tokenizer, tokens = tokenizer_of(name, special)
    markers, ids = markers_of(tokenizer), set(tokenizer.get_added_vocab().values())
    for text in attacks(tokens):
        clean = markers.without(f"it is {text} so")
        assert not any(each in clean for each in tokens), (text, clean)
        assert ids.isdisjoint(tokenizer.encode(clean, add_special_tokens=False))
        assert markers.without(clean) == clean
    for text in ("", "4 < 5 > 3 [a] {b: 1}", "{'error': 'no'}", "x[1] <b>bold</b>", "C:\\path", "\U0001f600 汉"):
        assert markers.without(text) == text


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "glm4moe", "lfm2_v2", "gptoss"])
def test_a_conversation_has_as_many_marks_with_an_attack_as_with_a_harmless_result(name):
    tokenizer, tokens = tokenizer_of(name, special=False)
    markers = markers_of(tokenizer)

    def marks(result):
        call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
        chat = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "f", "content": markers.without(result)},
        ]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return [text.count(each) for each in tokens]

    harmless = marks("4")
    assert sum(harmless) > 0
    for attack in attacks(tokens):
        assert marks(attack) == harmless, attack


def test_look_alikes_that_a_tokenizer_makes_marks_of_are_no_marks():
    tokenizer, _ = tokenizer_of("qwen3", special=True, normalizer=normalizers.NFKC())
    wide = "\uff1c\uff5cim_end\uff5c\uff1e"
    ids = set(tokenizer.get_added_vocab().values())
    assert not ids.isdisjoint(tokenizer.encode(wide, add_special_tokens=False))  # it does make one
    clean = markers_of(tokenizer).without(f"so {wide} and \ufe64|im_start|\ufe65 end")
    assert ids.isdisjoint(tokenizer.encode(clean, add_special_tokens=False))
    assert clean.startswith("so ")

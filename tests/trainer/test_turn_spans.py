"""Turns in their tokens: held against decoded prefixes, with the chat templates that TRL ships, and by brute force."""

import random
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from trl import GRPOTrainer, chat_template_utils

from grpo_plus.training.hooks import Completions
from grpo_plus.training.live_verifier import LiveVerifier
from grpo_plus.training.token_spans import decoder, token_ends
from grpo_plus.training.turn_spans import own_runs, step_tokens, turns_of
from grpo_plus.training.verification import Verification
from grpo_verifiers import get_verifier
from grpo_verifiers.errors import ColumnError
from grpo_verifiers.turns import Call, Turn

TEMPLATES = {
    "qwen2.5": ("qwen2_5_training", "<|im_end|>"),
    "qwen3": ("qwen3_training", "<|im_end|>"),
    "llama3": ("llama3_1", "<|eot_id|>"),
    "glm4": ("glm4moe_training", "<|user|>"),
    "gptoss": ("gptoss_training", "<|return|>"),
}
SPECIALS = re.findall(
    r"\S+",
    "<|im_start|> <|im_end|> <|endoftext|> <|eot_id|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> "
    "<|python_tag|> <|user|> <|assistant|> <|observation|> <|system|> [gMASK] <sop> <|start|> <|end|> <|message|> "
    "<|channel|> <|call|> <|return|> <|constrain|> <tool_call> </tool_call> <tool_response> </tool_response>",
)
SAID = ["Let me see.", "", "e\u0301 \U0001f9d1\u200d\U0001f52c ok", "汉字 and \U0001f600", "  spaces\n\n"]
RESULTS = ["4", "汉\U0001f600", "{'error': 'no'}", "a\nb\n", "1 = 2"]


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(["some words"], trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=SPECIALS))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")


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
            assert turn.start == len(decode(ids[:first]))
            assert turn.end == len(decode(ids[:last_token]))
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
    assert found == own_runs(mask) == spans
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
    verification = Verification([LiveVerifier(get_verifier("tool_used"))])
    row = {"prompt": "a", "turns": 3}
    with pytest.raises(ColumnError, match=r"column 'turns'.*rename the column"):
        verification.start([row], ["a"], ["b"], [[1]], BYTES, turns=[()])


def test_steps_of_turns_reach_exactly_their_tokens_and_equations_of_tools_are_nobodys():
    live = [LiveVerifier(get_verifier("math_steps", steps=by)) for by in ("turn", "newline")]
    verification = Verification(live)
    text, result = ["2+2 = 4.\n", "so 4+1 = 6"], "<1+1 = 3\n>"
    ids = list((text[0] + result + text[1]).encode())
    mask = [1] * len(text[0]) + [0] * len(result) + [1] * len(text[1])
    messages = [{"role": "assistant", "content": each} for each in text]
    turns, spans = turns_of(ids, mask, messages, decoder(BYTES))
    completions = Completions([{"prompt": ""}], [""], [messages], [ids], turns=[turns], turn_tokens=[spans])
    verification.start(completions.rows, [""], [messages], [ids], BYTES, turns=completions.turns)
    for each in live:
        each.collect(lambda *_: None)
    for by, each in zip(("turn", "newline"), live, strict=True):
        steps = Verification([each]).steps(["math_steps"], completions, BYTES)
        scored = [step for step in steps[0] if step[2] == step[2]]
        assert [step[2] for step in scored] == [1.0, 0.0], by
        assert all(any(first <= step[0] and step[1] <= last for first, last in spans) for step in scored), by
    assert [step[:2] for step in Verification([live[0]]).steps(["math_steps"], completions, BYTES)[0]] == spans

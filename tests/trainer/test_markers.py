"""Results of tools that hold marks of the chat template, attacked with the templates that TRL ships."""

import re

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from trl import chat_template_utils

from grpo_plus.training.markers import markers_of

TEMPLATES = [
    *("qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "llama3_2", "gptoss", "glm4moe", "deepseekv3_training"),
    *("lfm2_v2", "gemma4_v2", "cohere2", "nemotron_3_nano", "phi3"),
]
TOKEN = re.compile(r"<[|\uff5c][^<>\s]{1,40}[|\uff5c]>|</?(?:tool_call|tool_response|think)>")


def tokenizer_of(name, special, normalizer=None):
    """A tokenizer of bytes with the tokens of a template, of which its own map of special tokens names two."""
    template = getattr(chat_template_utils, f"{name}_chat_template", None)
    if template is None:
        pytest.skip("this release of TRL has no such template")
    tokens = sorted({*TOKEN.findall(template), "<|endoftext|>", "<|reserved_7|>"})
    made = Tokenizer(models.BPE())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(["words"], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    added = [AddedToken(each, special=special, normalized=normalizer is not None) for each in tokens]
    made.add_special_tokens(added) if special else made.add_tokens(added)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=tokens[0], pad_token="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer, tokens


def attacks(tokens):
    whole = "".join(tokens)
    split = [f"{each[: len(each) // 2]}{each}{each[len(each) // 2 :]}" for each in tokens]
    return [*tokens, whole, *split, *(f"\\{each}" for each in tokens), whole[::-1] + whole, f"{{'error': '{whole}'}}"]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
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

"""Chat templates of real models, which TRL ships: where their turns end, and what becomes of thinking."""

import re

import pytest

from grpo_plus.check.tokens import template_findings, thinks_by_default
from grpo_plus.trl.versions import source_file

FOLDER = source_file("trl", "chat_templates")
MARKS = r"<\|[^<>|]+\|>|<\w+_of_turn>|<\uff5c[^<>]+\uff5c>|<turn\|>|<\|turn>"
PROMPT = [{"role": "user", "content": "2+2"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}

# The end of a turn; whether the model thinks unasked, and tools can be shown.
MODELS = {
    "qwen2_5": ("<|im_end|>", False, True), "qwen3": ("<|im_end|>", True, True),
    "qwen3_training": ("<|im_end|>", True, False), "qwen3_instruct_2507": ("<|im_end|>", False, True),
    "llama3": ("<|eot_id|>", False, False), "llama3_1": ("<|eot_id|>", False, True),
    "gemma": ("<end_of_turn>", False, False), "gemma4": ("<turn|>", False, True), "phi3": ("<|end|>", False, False),
    "gptoss": ("<|return|>", False, True), "glm4moe": ("<|user|>", True, True),
    "deepseek_r1_distill": ("<\uff5cend\u2581of\u2581sentence\uff5c>", True, False),
}  # fmt: skip


def tokenizer_of(name):
    """A tokenizer with the template, and with its marks as tokens."""
    from grpo_plus.testing.tiny import make_tiny_tokenizer

    path = FOLDER / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"this TRL has no {path.name}")
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = path.read_text(encoding="utf-8")
    marks = sorted(set(re.findall(MARKS, tokenizer.chat_template)))
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    return tokenizer


def findings_of(tokenizer, ends, prompt=PROMPT, **given):
    found = template_findings(tokenizer, prompt, ends, keywords={}, **given)
    return {finding.code: finding.value for finding in found}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_templates_of_real_models_do(name):
    end, thinks, shows_tools = MODELS[name]
    tokenizer = tokenizer_of(name)
    number = tokenizer.convert_tokens_to_ids(end)
    found = findings_of(tokenizer, {number}, schemas=[TOOL])
    assert found["turn-ends"].startswith(f"a turn ends with {end} ({number}), ")
    assert thinks_by_default(tokenizer) is thinks
    assert ("tools-unsupported" in found) is not shows_tools
    assert "template-fails" not in found
    found = findings_of(tokenizer, {0})
    assert f"{end} ({number})" in found["turn-without-end" if name == "glm4moe" else "turn-never-ends"]


def test_a_template_for_messages_of_parts_gives_no_false_alarm():
    """Those of models that see write nothing of a plain text: where their turns end cannot be told."""
    assert not findings_of(tokenizer_of("idefics3"), {1})
    assert not findings_of(tokenizer_of("qwen3"), {1}, prompt="2+2")

"""Remarks on thinking beyond the limit, and on formats that are rewarded and never asked for."""

from pathlib import Path

import pytest
import trl
import yaml
from transformers import AutoTokenizer

from grpo_plus.check.tokens import thinks_by_default
from grpo_plus.cli._notes import template_notes
from grpo_plus.config import GRPOPlusConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    def tokenizer(template):
        made = AutoTokenizer.from_pretrained(tiny_model)
        path = Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja"
        made.chat_template = path.read_text() if template else None
        return made

    return tokenizer


@pytest.fixture
def notes(tmp_path):
    def notes(prompt=None, model="a/model", tokenizer=None, text=None, **settings):
        settings = {"max_completion_length": 8192, **settings}
        config = GRPOPlusConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, num_generations=2, **settings)
        return template_notes(config, prompt or {}, model, tokenizer, text)

    return notes


@pytest.mark.parametrize(("template", "thinks"), [("qwen3", True), ("deepseek_r1_distill", True), (None, False)])
def test_a_template_is_asked_whether_it_thinks_by_default(tokenizer, template, thinks):
    assert thinks_by_default(tokenizer(template)) is thinks


def test_a_small_limit_is_noted_until_somebody_decides_and_a_whole_prompt_that_asks_is_enough(notes, tokenizer):
    thinking = tokenizer("qwen3")
    [note] = notes(tokenizer=thinking, max_completion_length=1024)
    assert "max_completion_length is 1024" in note
    assert "enable_thinking: false" in note
    assert notes(tokenizer=thinking, max_completion_length=4096) == []
    for chosen in (True, False):
        keywords = {"enable_thinking": chosen}
        assert notes(tokenizer=thinking, max_completion_length=1024, chat_template_kwargs=keywords) == []
    assert notes({"column": "question"}, verifiers=["think_format"], text="Write <think>…</think> first.") == []


def test_a_format_that_is_rewarded_and_never_asked_for_is_noted(notes):
    for prompt, verifiers, missing in (
        ({"column": "question"}, ["think_format"], "<think>"),
        ({"template": "boxed"}, ["math", "tag_count"], "<think>, <answer>"),
        ({"template": "think"}, [{"name": "think_format", "answer": "answer"}], "<answer>"),
        ({"template": "think_boxed"}, ["think_format", "math"], None),
        ({"template": "think_answer"}, [{"name": "think_format", "answer": "answer"}], None),
        ({"system": "Write <think> and </think>."}, ["think_format"], None),
        ({"column": "question"}, [{"name": "think_format", "prefilled": True}], None),
        ({"column": "question"}, [{"name": "think_format", "weight": 0}, "math"], None),
        ({}, ["think_format"], None),  # the data's own prompts may ask
    ):
        found = notes(prompt, verifiers=verifiers)
        assert [missing in note for note in found] == ([True] if missing else [])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("**/*.yaml")), ids=lambda path: path.stem)
def test_recipes_for_models_that_think_say_whether_to(path):
    values = next(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    if not isinstance(values, dict) or "/Qwen3-" not in str(values.get("model_name_or_path")):
        return
    assert "enable_thinking" in values["chat_template_kwargs"]

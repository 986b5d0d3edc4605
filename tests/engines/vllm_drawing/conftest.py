"""A model that calls a tool, trained on the spot, and a real vLLM server that serves it."""

import random

import pytest
import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.testing import make_tiny_model
from tests.engines import vllm_server

SIZES = {"architecture": "llama", "hidden": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'assistant' -%}
A:{{ message.content }}{% for call in message.tool_calls or [] %}<call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</call>{% endfor %}{{ eos_token }}
{%- else -%}
{{ 'T:' if message.role == 'tool' else 'U:' }}{{ message.content }};
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}A:{% endif %}"""
CALL = {"open": "<call>", "close_pattern": "</call>", "repeats": True, "content": "json"}
CALL |= {"transform": {"type": "function", "function": "{content}"}}
PARSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": ";A:",
    "fields": {"tool_calls": CALL, "content": {"close_pattern": r"<\|im_end\|>", "content": "text"}},
}


def double(x: int) -> int:
    """Doubles a number.

    Args:
        x: the number.

    Returns:
        Twice the number.
    """
    CALLS.append(x)
    return 2 * x


CALLS = []


def chat(number):
    """A question, the call, the tool's answer and the model's, as the template writes them."""
    call = f'<call>{{"name": "double", "arguments": {{"x": {number}}}}}</call>'
    return f"U:{number};A:{call}<|im_end|>T:{2 * number};A:{2 * number}<|im_end|>"


@pytest.fixture(scope="session")
def caller(tmp_path_factory):
    """The folder of a tiny model that asks a tool for the double of a number, and then says it."""
    folder = tmp_path_factory.mktemp("caller")
    model, tokenizer = make_tiny_model(**SIZES)
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = PARSES
    torch.manual_seed(0)
    draw, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        texts = [chat(draw.randint(1, 9)) for _ in range(8)]
        batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt", add_special_tokens=False)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def url(caller, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with vllm_server.serving(caller, "--logprobs-mode", "processed_logprobs", log=log) as server:
        yield server.url


@pytest.fixture
def drawn(caller, url, tmp_path):
    from transformers import AutoTokenizer

    def drawn(reward, rows, tools=(), **changes):
        values = {"output_dir": str(tmp_path / "out"), "max_completion_length": 96, "max_steps": 3}
        values |= {"learning_rate": 1e-3, "rollout": {"vllm_sync": "files"}}
        values |= {"vllm_server_base_url": url, "vllm_server_timeout": 20}
        tokenizer = AutoTokenizer.from_pretrained(caller)
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, PARSES
        further = {"processing_class": tokenizer, **({"tools": list(tools)} if tools else {})}
        args = GRPOPlusConfig(**{**vllm_server.RUN, **values, **changes})
        run = GRPOPlusTrainer(caller, reward, args, Dataset.from_list(rows), **further)
        run.train()
        return run

    return drawn


@pytest.fixture
def tool():
    CALLS.clear()
    return double, CALLS

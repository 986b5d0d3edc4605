import json
import shutil
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.evaluation.sample import Sampler
from grpo_plus.testing import make_tiny_model
from grpo_verifiers.registry import import_reference
from tests.cli.commands import Commands


@pytest.fixture
def cli(cli):
    return Commands(cli)


@pytest.fixture
def data(tmp_path):
    """A file of rows, of which some have an answer that a random model gives now and then."""
    path = tmp_path / "data.jsonl"
    rows = [{"prompt": f"{n}+1=", "question": f"{n}?", "answer": str(n % 3), "n": n} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TOOLS = Path(__file__).parents[1] / "trainer" / "tools_of_tests.py"
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
DOUBLE, COUNTING, COUNTER, OTHER = (f"{TOOLS}:{name}" for name in ("double", "Counting", "Counter", "Other"))


def results_behind(prompt):
    return prompt.rpartition("<|im_start|>user\nq")[2].count("<tool_response>")


def number_of(prompt):
    return int(prompt.rpartition("<|im_start|>user\nq")[2][0])


def counting(prompt, row):
    """Reaches the goal of 3 on even questions."""
    return called("add", number=1) if results_behind(prompt) < 3 - number_of(prompt) % 2 else "done<|im_end|>"


def samples_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def untimed(path):
    return without_seconds(samples_of(path))


def without_seconds(samples):
    """Stored samples by row and number, without the seconds of calls."""
    for row in samples:
        for turn in row["turns"]:
            for call in turn["calls"]:
                del call["seconds"]
    return {(row["row"], row["sample"]): row for row in samples}


def called(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call><|im_end|>"


def chats(**more):
    rows = [{"prompt": [{"role": "user", "content": f"q{n}"}], "answer": str(n), "goal": 3} for n in range(8)]
    return Dataset.from_list([row | {name: value(n) for name, value in more.items()} for n, row in enumerate(rows)])


@pytest.fixture(scope="session")
def calling_model(tmp_path_factory):
    """A folder with a tiny model that was trained to call `double`, and then to say the result."""
    double = import_reference(f"{TOOLS}:double")
    model, tokenizer = make_tiny_model(hidden=64)
    tokenizer.chat_template = TEMPLATE.read_text()
    rows, labels = [], []
    for row in chats().select([0, 5]):
        asked = tokenizer.apply_chat_template(row["prompt"], tools=[double], add_generation_prompt=True, tokenize=False)
        told = "\n<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        parts = [(asked, 0), (called("double", number=1), 1), (told, 0), ("it is 2<|im_end|>", 1)]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text, _ in parts]
        rows.append([token for own in ids for token in own])
        labels.append([token if mine else -100 for own, (_, mine) in zip(ids, parts, strict=True) for token in own])
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    wanted = torch.tensor([row + [-100] * (width - len(row)) for row in labels])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(25):
        optimizer.zero_grad()
        model(input_ids=ids, labels=wanted).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("calling")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def speaking(monkeypatch, tiny_model):
    """Makes evaluation's sampler say given texts: `speaking(lambda prompt, row: text)`, tokens being characters."""

    def speaking(answer):
        def complete(sampler, prompts, seeds, most=None):
            texts = [answer(sampler.tokenizer.decode(ids), row) for row, ids in enumerate(prompts)]
            return [sampler.tokenizer.encode(text, add_special_tokens=False)[:most] for text in texts]

        monkeypatch.setattr(Sampler, "complete", complete)

    return speaking


@pytest.fixture
def tool_model(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "tool_model")
    shutil.copy(TEMPLATE, tmp_path / "tool_model" / "chat_template.jinja")
    return str(tmp_path / "tool_model")


@pytest.fixture
def trained(tmp_path):
    """Makes a trainer on chats: `trained(model, tools=[…])`."""

    def trained(model, *classes, given=None, **settings):
        trainer_class, config_class = classes or (GRPOPlusTrainer, GRPOPlusConfig)
        base = {
            "output_dir": str(tmp_path / "out"), "use_cpu": True, "bf16": False, "report_to": "none", "max_steps": 1,
            "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 300, "disable_tqdm": True,
            "save_strategy": "no", "logging_steps": 1, "optim": "sgd", "gradient_checkpointing": False,
        }  # fmt: skip
        config = config_class(**{**base, **settings})
        return trainer_class(model=model, args=config, **{"train_dataset": chats(), **(given or {})})

    return trained

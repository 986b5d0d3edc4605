import json

import pytest

from tests.device import FLOAT32

SETTINGS = {
    **FLOAT32,
    "report_to": "none",
    "max_steps": 2,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 12,
    # Plain gradient descent: Adam would turn the rounding of a gradient near 0 into a whole step of the learning rate.
    "optim": "sgd",
    "learning_rate": 0.05,
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}


def digits(completions, **_):
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [sum(character.isdigit() for character in text) / 12 for text in texts]


def letters(completions, **_):
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [None if len(text) % 5 == 0 else sum(character.isalpha() for character in text) / 12 for text in texts]


@pytest.fixture(scope="session")
def sums():
    """A dataset of plain prompts, with a column beside them."""
    from datasets import Dataset

    rows = [{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(16)]
    return Dataset.from_list(rows)


@pytest.fixture(scope="session")
def chats(sums):
    """The same as conversations."""
    from datasets import Dataset

    return Dataset.from_list([{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in sums])


@pytest.fixture
def build(tiny_model, sums, tmp_path):
    """Makes a trainer: `build(GRPOPlusTrainer, GRPOPlusConfig, trainer={...}, advantage="sign")`."""

    def build(trainer_class=None, config_class=None, *, trainer=None, **settings):
        from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

        config = (config_class or GRPOPlusConfig)(**{"output_dir": str(tmp_path / "out"), **SETTINGS, **settings})
        given = {"model": tiny_model, "reward_funcs": [digits], "train_dataset": sums, **(trainer or {})}
        return (trainer_class or GRPOPlusTrainer)(args=config, **given)

    return build


@pytest.fixture
def capture(monkeypatch):
    """Keeps what a trainer makes of each generation batch, as it is before it is shuffled, in main memory."""

    def capture(trainer):
        kept = []
        inner = trainer._generate_and_score_completions

        def keeping(inputs):
            output = inner(inputs)
            kept.append({k: v.to("cpu", copy=True) if hasattr(v, "clone") else v for k, v in output.items()})
            return output

        trainer._generate_and_score_completions = keeping
        return kept

    return capture


@pytest.fixture
def say(monkeypatch):
    """Makes TRL's sampler say given texts: `say(lambda prompt, row: text)`, the tiny model's tokens being characters."""

    def say(answer):
        from trl import GRPOTrainer

        def single_turn(trainer, prompt_ids, *_, **__):
            tokenizer = trainer._tokenizer
            texts = [answer(tokenizer.decode(ids), row) for row, ids in enumerate(prompt_ids)]
            return [tokenizer.encode(text, add_special_tokens=False) for text in texts], None

        monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", single_turn)

    return say


@pytest.fixture
def tool_calls(say):
    """A model that calls a tool on every other row, then answers."""

    def answer(prompt, row):
        if "<tool_response>" in prompt.rpartition("<|im_start|>user")[2]:
            return f"it is {'7' * (row % 3)}<|im_end|>"
        call = {"name": "double", "arguments": {"number": row}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>" if row % 2 == 0 else f"no {row}<|im_end|>"

    say(answer)


@pytest.fixture(scope="session")
def tool_tokenizer(tiny_model):
    """The tiny model's tokenizer with a chat template that can call tools."""
    from pathlib import Path

    import trl
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer

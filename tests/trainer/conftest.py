import json
from pathlib import Path

import pytest

from tests.device import FLOAT32
from tests.trainer.tools_of_tests import called, turn_of

# Plain gradient descent: Adam would turn the rounding of a gradient near 0 into a whole step of the learning rate.
SETTINGS = {**FLOAT32, "report_to": "none", "max_steps": 2, "optim": "sgd", "learning_rate": 0.05}
SETTINGS |= {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 12}
SETTINGS |= {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "gradient_checkpointing": False}
BASE = {"output_dir": "unused", **FLOAT32, "report_to": "none"}
"""Of a config that is only built."""

TRAIN = {"checkpoint", "drawn", "ran", "resumed", "run", "saved", "trained", "two_ranks", "watched"}
"""Fixtures that train: a test that uses one is slow, but for those that ``sample`` picks."""


def pytest_collection_modifyitems(items):
    for item in items:
        trains = item.path.parent == Path(__file__).parent and TRAIN.intersection(item.fixturenames)
        if trains and item.get_closest_marker("sample") is None:
            item.add_marker("slow")


def weights(trainer):
    """All weights of the model in one row."""
    import torch

    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def logged(trainer, name):
    """The values of a metric that a run has logged, in order."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def digits(completions, **_):
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [sum(character.isdigit() for character in text) / 12 for text in texts]


def letters(completions, **_):
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [None if len(text) % 5 == 0 else sum(character.isalpha() for character in text) / 12 for text in texts]


@pytest.fixture(scope="session")
def sums():
    from datasets import Dataset

    rows = [{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(16)]
    return Dataset.from_list(rows)


@pytest.fixture(scope="session")
def chats(sums):
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


def capture(trainer):
    """Keeps what a trainer makes of each generation batch, as it is before it is shuffled, in main memory."""
    kept, inner = [], trainer._generate_and_score_completions

    def keeping(inputs):
        output = inner(inputs)
        kept.append({k: v.to("cpu", copy=True) if hasattr(v, "clone") else v for k, v in output.items()})
        return output

    trainer._generate_and_score_completions = keeping
    return kept


def keep_tables(trainer):
    """Keeps the table of rewards of each generation batch."""
    tables, make = [], trainer.pipeline.advantages.table
    trainer.pipeline.advantages.table = lambda *given: (tables.append(make(*given)), tables[-1])[1]
    return tables


@pytest.fixture
def trained(build):
    """A trainer that has trained, with what it made of each generation batch: `trained(advantage="raw").generated`."""

    def trained(*classes, resume=None, allow=False, before=lambda trainer: None, **settings):
        trainer = build(*classes, **settings)
        trainer.generated = capture(trainer)
        before(trainer)
        trainer.train(resume_from_checkpoint=resume, **({"allow_changes": True} if allow else {}))
        return trainer

    return trained


@pytest.fixture
def checked(trained):
    """A trainer that has trained for a step with verifiers alone: `checked("exact", "math", advantage="raw")`."""

    def checked(*verifiers, trainer=None, **settings):
        given = {"reward_funcs": None, **(trainer or {})}
        return trained(trainer=given, verifiers=list(verifiers), **{"max_steps": 1, **settings})

    return checked


@pytest.fixture(scope="module")
def in_two_worlds(tmp_path_factory, tiny_model, two_ranks):
    """What one process, this one, and two launched ones make of the same runs of a kind in ``ranks.py``."""
    from tests.trainer import ranks

    def in_two_worlds(kind, runs):
        folder = tmp_path_factory.mktemp("worlds")
        with two_ranks(ranks.__file__, folder, tiny_model, json.dumps(runs), kind, log=folder / "log", seconds=600):
            one = {name: ranks.KINDS[kind](str(folder), tiny_model, 12, **more) for name, more in runs.items()}
        return json.loads(json.dumps(one)), json.loads((folder / "found.json").read_text())

    return in_two_worlds


@pytest.fixture
def ranks(two_ranks, tiny_model, tmp_path):
    """What two ranks write down of a kind of run in ``resumed_ranks.py``: `ranks("place")`."""

    def ranks(kind, *more):
        script = Path(__file__).with_name("resumed_ranks.py")
        with two_ranks(script, kind, tmp_path, tiny_model, kind, *more, log=tmp_path / "log"):
            pass
        return [json.loads((tmp_path / f"{kind}_{rank}.json").read_text()) for rank in range(2)]

    return ranks


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
    def answer(prompt, row):
        if turn_of(prompt):
            return f"it is {'7' * (row % 3)}<|im_end|>"
        return (called("double", number=row) if row % 2 == 0 else f"no {row}") + "<|im_end|>"

    say(answer)


def tool_tokens(model):
    """The tiny model's tokenizer with a chat template that can call tools."""
    import trl
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer


@pytest.fixture
def tool_tokenizer(tiny_model):
    """One for each test: a trainer that calls tools changes it."""
    return tool_tokens(tiny_model)

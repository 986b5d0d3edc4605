import json

import pytest

SETTINGS = {"use_cpu": True, "bf16": False, "report_to": "none", "max_steps": 2, "num_generations": 4}
SETTINGS |= {"logging_steps": 1, "max_completion_length": 10, "learning_rate": 1e-3}
SETTINGS |= {"per_device_train_batch_size": 8, "report": {"every": 0}, "save_strategy": "no"}
SETTINGS |= {"lr_scheduler_type": "constant", "disable_tqdm": True, "gradient_checkpointing": False}


def digits(completions, **_):
    return [sum(character.isdigit() for character in text) / 10 for text in completions]


@pytest.fixture
def build(tiny_model, tmp_path):
    """Makes a trainer in `tmp_path / "out"`: `build(advantage="sign")`."""
    from datasets import Dataset

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    rows = [{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(16)]

    def build(*, rewards=(digits,), step_scorer=None, evaluates=False, **settings):
        config = GRPOPlusConfig(output_dir=str(tmp_path / "out"), **{**SETTINGS, **settings})
        data, held = Dataset.from_list(rows), Dataset.from_list(rows[:4]) if evaluates else None
        return GRPOPlusTrainer(tiny_model, list(rewards) or None, config, data, held, step_scorer=step_scorer)

    return build


@pytest.fixture
def capture():
    """Keeps what a trainer makes of each generation batch, and the ids it sampled."""

    def capture(trainer):
        kept = []
        score, rewards = trainer._generate_and_score_completions, trainer._calculate_rewards

        def keep_rewards(inputs, prompts, completions, ids):
            found = rewards(inputs, prompts, completions, ids)
            kept.append({"ids": [list(one) for one in ids], "rewards": found.tolist(), "prompts": list(prompts)})
            return found

        def keep(inputs):
            output = score(inputs)
            kept[-1]["advantages"] = output["advantages"].tolist()
            return output

        trainer._generate_and_score_completions, trainer._calculate_rewards = keep, keep_rewards
        return kept

    return capture


@pytest.fixture
def lines():
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]

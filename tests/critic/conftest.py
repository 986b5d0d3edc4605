import pytest

from tests.device import FLOAT32

RUN = {**FLOAT32, "report_to": "none", "max_steps": 3, "num_generations": 1, "advantage": "gae"}
RUN |= {"per_device_train_batch_size": 4, "max_completion_length": 8, "learning_rate": 0.01, "logging_steps": 1}
RUN |= {"save_strategy": "no", "disable_tqdm": True, "report": {"every": 0}, "gradient_checkpointing": False}
RUN |= {"report": False}


def vowels(completions, **_):
    return [sum(letter in "aeiou0123456789" for letter in text) / 8 for text in completions]


@pytest.fixture
def build(tiny_model, tmp_path):
    """Makes a trainer with a critic: `build({"on": "trunk"}, max_steps=3)`."""

    def build(critic=None, *, lora=None, model=None, rewards=vowels, rows=8, evaluation=None, hooks=(), **settings):
        from datasets import Dataset
        from peft import LoraConfig

        from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

        config = GRPOPlusConfig(**RUN | {"output_dir": str(tmp_path / "out"), "critic": critic} | settings)
        data = Dataset.from_dict({"prompt": [f"{n}+{n}=" for n in range(rows)]})
        adapts = lora if lora is not None else (critic or {}).get("on") == "adapter"
        adapter = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM") if adapts else None
        return GRPOPlusTrainer(model or tiny_model, rewards, config, data, evaluation, peft_config=adapter, hooks=hooks)

    return build

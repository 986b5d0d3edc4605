from pathlib import Path

import pytest

FILE = str(Path(__file__).with_name("runs_of_tests.py"))
SETTINGS = {"use_cpu": True, "bf16": False, "report_to": "none", "log_level": "error", "num_generations": 8, "seed": 3}
SETTINGS |= {"per_device_train_batch_size": 64, "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
SETTINGS |= {"gradient_checkpointing": False, "advantage": "zscore"}


@pytest.fixture
def run(tiny_model, tmp_path):
    """Trains for real, and gives the trainer: `run(verifiers=["exact"], max_steps=4)`."""

    def run(answers=None, trainer=None, resume=None, **settings):
        from datasets import Dataset

        from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

        answers = [str(number % 10) for number in range(32)] if answers is None else answers
        rows = Dataset.from_list([{"prompt": f"{at}:", "answer": answer} for at, answer in enumerate(answers)])
        config = GRPOPlusConfig(**{"output_dir": str(tmp_path / "out"), **SETTINGS, **settings})
        given = {"model": tiny_model, "train_dataset": rows, **(trainer or {})}
        made = GRPOPlusTrainer(args=config, **given)
        made.train(resume_from_checkpoint=resume)
        return made

    return run

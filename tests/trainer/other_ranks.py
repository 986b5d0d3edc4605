"""Ranks of one run: a first one is saved after two steps, another one goes on with another number of processes."""

import json
import logging
import os
import sys
from pathlib import Path

from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus._trl import gather_objects
from grpo_plus.training.hooks import Hook


class Prompts(Hook):
    """Notes the prompts of each generation batch, all ranks together."""

    def __init__(self):
        self.found = []

    def prompts(self, rows):
        self.found.append(gather_objects([row["prompt"] for row in rows]))


class Notes(logging.Handler):
    """Keeps what is said."""

    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        self.found.append(record.getMessage())


def reward(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def main(folder, model, which):
    said, hook = Notes(), Prompts()
    logging.getLogger("grpo_plus").addHandler(said)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    config = GRPOPlusConfig(
        output_dir=str(Path(folder) / "out"), use_cpu=True, bf16=False, report_to="none", num_generations=4,
        per_device_train_batch_size=8 // processes, max_completion_length=6, max_steps=4, save_strategy="steps",
        save_steps=1, logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, learning_rate=0.05, optim="sgd",
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": [f"{number}+1=" for number in range(16)]})
    trainer = GRPOPlusTrainer(model, reward, config, prompts, hooks=[hook])
    start = None if which == "first" else str(Path(folder) / "out" / "checkpoint-2")
    trainer.train(resume_from_checkpoint=start)
    if trainer.accelerator.is_main_process:
        notes = [text for text in said.found if "other settings" in text]
        found = {"processes": processes, "prompts": hook.found, "notes": notes}
        Path(folder, f"{which}.json").write_text(json.dumps(found))
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:])

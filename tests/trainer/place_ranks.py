"""Two ranks: a run, and the same resumed inside its generation batches, past its first pass and in a stream."""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.training.hooks import Hook

ROWS = [{"prompt": prompt} for prompt in ("1+1=", "say it", "x", "a b c", "2+2=", "y")]


class Prompts(Hook):
    """Notes the prompts of each generation."""

    def __init__(self):
        self.drawn = []

    def prompts(self, rows):
        self.drawn.append([self.host.state.global_step, [row["prompt"] for row in rows]])


def reward(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def build(model, folder, *, stream):
    config = GRPOPlusConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", num_generations=2, logging_steps=2,
        per_device_train_batch_size=1, max_completion_length=6, max_steps=14, save_strategy="steps", save_steps=1,
        disable_tqdm=True, gradient_checkpointing=False, learning_rate=0.01, steps_per_generation=2, num_iterations=2,
        objective="grpo",
    )  # fmt: skip
    data = IterableDataset.from_generator(lambda: iter(ROWS)) if stream else Dataset.from_list(ROWS)
    hook = Prompts()
    return GRPOPlusTrainer(model, reward, config, data, hooks=[hook]), hook


def weights(trainer):
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def logged(trainer, step):
    """What was logged after a step, without times; a checkpoint holds the history of the first rank only."""
    return [
        {name: value for name, value in entry.items() if "time" not in name}
        for entry in trainer.state.log_history
        if "train_loss" not in entry and entry["step"] > step
    ]


def main(folder, model):
    found = []
    for stream in (False, True):
        whole, prompts = build(model, Path(folder) / f"whole_{stream}", stream=stream)
        whole.train()
        for step in (3, 6, 12, 13):
            again, drawn = build(model, Path(folder) / f"again_{stream}", stream=stream)
            again.train(resume_from_checkpoint=str(Path(folder) / f"whole_{stream}" / f"checkpoint-{step}"))
            later = [entry for entry in prompts.drawn if entry[0] >= step]
            same = {
                "weights": torch.equal(weights(again), weights(whole)),
                "logs": logged(again, step) == logged(whole, step),
                "prompts": drawn.drawn == later,
            }
            found.append([stream, step, len(later), same])
    Path(folder, f"place_{whole.accelerator.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

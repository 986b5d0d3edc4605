"""Two ranks: what a selection draws and remembers, and the same resumed inside its generation batches."""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.training.hooks import Hook

ROWS = [{"prompt": f"{kind}{number}"} for kind in "abc" for number in range(4)]


class Notes(Hook):
    """Notes the prompts of each generation on this rank, and the shares of its rows."""

    def __init__(self):
        self.drawn, self.shares = [], []

    def prompts(self, rows):
        self.drawn.append([row["prompt"] for row in rows])

    def batch(self, output):
        self.shares.append(output["share"].tolist())


def reward(prompts, completions, **_):
    kinds = {"a": lambda _: 0.0, "b": lambda _: 1.0, "c": lambda text: float(sum(map(ord, text)) % 2)}
    return [kinds[prompt[0]](text) for prompt, text in zip(prompts, completions, strict=True)]


def build(model, folder, **settings):
    config = GRPOPlusConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", num_generations=4, logging_steps=2,
        per_device_train_batch_size=6, max_completion_length=6, max_steps=12, save_strategy="steps", save_steps=1,
        disable_tqdm=True, gradient_checkpointing=False, learning_rate=0.01, objective="grpo",
        **{"selection": "contrast", **settings},
    )  # fmt: skip
    notes = Notes()
    return GRPOPlusTrainer(model, reward, config, Dataset.from_list(ROWS), hooks=[notes]), notes


def weights(trainer):
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def chance(history):
    """Other weights on each rank."""
    return torch.rand(len(history)) ** 4


def main(folder, model):
    found = {}
    ways = {"keep": {}, "resample": {"dead_groups": "resample"}, "roulette": {"dead_groups": "roulette"}}
    ways["random"] = {"selection": f"{__file__}:chance", "dead_groups": "resample"}
    for way, settings in ways.items():
        whole, notes = build(model, Path(folder) / way, **settings)
        whole.train()
        again, later = build(model, Path(folder) / f"{way}_again", **settings)
        again.train(resume_from_checkpoint=str(Path(folder) / way / "checkpoint-5"))
        found[way] = {
            "drawn": notes.drawn,
            "shares": notes.shares,
            "counts": whole.selecting.history.counts.tolist(),
            "draws": whole.selecting.history.drawn.tolist(),
            "summary": whole.selecting.summary(),
            "resumed": later.drawn == notes.drawn[len(notes.drawn) - len(later.drawn) :],
            "weights": torch.equal(weights(again), weights(whole)),
        }
    Path(folder, f"selecting_{whole.accelerator.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

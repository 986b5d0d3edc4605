"""Two ranks with three groups of four, of which the second spans both; all but the first are dead in the second batch."""

import sys
from pathlib import Path

import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer, _trl
from grpo_plus.training.hooks import Hook

SETTINGS = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "num_generations": 4,
    "per_device_train_batch_size": 6,
    "max_completion_length": 6,
    "max_steps": 2,
    "optim": "sgd",
    "learning_rate": 0.5,
    "gradient_checkpointing": False,
    "objective": "grpo",
    "dead_groups": "replay",
}


class Kept(Hook):
    def __init__(self):
        self.batches = []

    def batch(self, output):
        def rows(values):
            pairs = zip(values, output["completion_mask"].bool(), strict=True)
            return _trl.gather_objects([row[mask].tolist() for row, mask in pairs])

        now = _trl.score_without_gradient(self.host, output)
        found = {"texts": rows(output["completion_ids"]), "now": rows(now)}
        found["old"] = rows(output["old_per_token_logps"]) if "old_per_token_logps" in output else None
        found["advantages"] = _trl.gather_objects(output["advantages"].tolist())
        self.batches.append({**found, "items": int(output["num_items_in_batch"])})


def main(model, folder):
    kept, calls = Kept(), []

    def reward(completions, **_):
        calls.append(1)
        rank = trainer.accelerator.process_index
        groups = [(rank * len(completions) + row) // 4 for row in range(len(completions))]
        return [float(row % 2) if len(calls) == 1 or group == 0 else 1.0 for row, group in enumerate(groups)]

    data = Dataset.from_dict({"prompt": ["1+1=", "what is 30?", "x", "say", "a b c", "77"]})
    config = GRPOPlusConfig(output_dir=str(Path(folder) / "out"), **SETTINGS)
    trainer = GRPOPlusTrainer(model, reward, config, data, hooks=[kept])
    trainer.train()
    if trainer.accelerator.is_main_process:
        torch.save(kept.batches, Path(folder) / "batches.pt")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

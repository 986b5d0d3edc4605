"""Two ranks: the disk of one of them is full while they train, and is free again before the end."""

import hashlib
import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from full_disk import fill

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.training.hooks import Hook


class Act(Hook):
    """Fills a disk in step 2, and frees it in step 4."""

    def __init__(self, place, left):
        self.place, self.left = place, left

    def on_step_begin(self, _args, state, _control, **_):
        if state.global_step == 1:
            fill(self.place, self.left)
        if state.global_step == 3:
            (self.place / "other").unlink()


def reward(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def main(folder, disk, model, *case):
    full, left, further = case
    rank = int(os.environ["RANK"])
    place = Path(disk) if rank == int(full) else Path(folder) / "fine"
    config = GRPOPlusConfig(
        output_dir=str(place / "run"), use_cpu=True, bf16=False, report_to="none", num_generations=4, max_steps=4,
        per_device_train_batch_size=4, max_completion_length=6, save_strategy="steps", save_steps=1, logging_steps=1,
        disable_tqdm=True, gradient_checkpointing=False, learning_rate=0.05, **json.loads(further),
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["1+1=", "say it", "x", "a b c"] * 4})
    hooks = [Act(place, int(left))] if rank == int(full) else []
    trainer = GRPOPlusTrainer(model, reward, config, prompts, prompts.select(range(2)), hooks=hooks)
    said = []
    save = trainer.saving.save
    trainer.saving.save = lambda *given: (save(*given), said.append(str(trainer.saving.failed)))
    trainer.train()
    weights = b"".join(weight.detach().numpy().tobytes() for weight in trainer.model.parameters())
    found = {"failed": said, "step": trainer.state.global_step, "weights": hashlib.sha256(weights).hexdigest()}
    found["files"] = sorted(str(path.relative_to(place / "run")) for path in (place / "run").glob("checkpoint-*/*"))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


main(*sys.argv[1:])

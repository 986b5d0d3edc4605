"""Two ranks: they save, and go on from the same checkpoint, or are refused alike."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from transformers import TrainerCallback

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.choice import CheckpointError


class Steps(TrainerCallback):
    """Notes the steps that are trained."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **_):
        self.seen.append(state.global_step)


def reward(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def build(model, folder, **further):
    config = GRPOPlusConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", num_generations=4, max_steps=2,
        per_device_train_batch_size=4, max_completion_length=6, save_strategy="steps", save_steps=1, record=False,
        logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, optim="adamw_torch", **further,
    )  # fmt: skip
    return GRPOPlusTrainer(model, reward, config, Dataset.from_dict({"prompt": ["1+1=", "say it", "x", "a b c"] * 4}))


def main(folder, model):
    out = Path(folder) / "out"
    first = build(model, out)
    first.train()
    wait, main = first.accelerator.wait_for_everyone, first.is_world_process_zero()
    found = {"files": sorted(manifest.read(out / "checkpoint-2").files)}
    wait()
    if main:
        os.truncate(out / "checkpoint-2" / "rng_state_1.pth", 0)
    wait()
    again, steps = build(model, out, save_total_limit=5), Steps()
    again.args.save_strategy = "no"
    again.add_callback(steps)
    again.train(resume_from_checkpoint="last")
    found["steps"] = steps.seen
    wait()
    if main:
        os.truncate(out / "checkpoint-1" / "rng_state_1.pth", 0)
        (out / "checkpoint-2" / "optimizer.pt").unlink()
    wait()
    try:
        build(model, out).train(resume_from_checkpoint=True)
    except CheckpointError as error:
        found["refused"] = str(error)
    Path(folder, f"found_{first.accelerator.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

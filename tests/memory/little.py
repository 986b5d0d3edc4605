"""A run whose update does not fit in what is left of the address space; prints how it went."""

import json
import resource
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.testing import make_tiny_model

MIB = 2**20


def letters(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


class Fence(TrainerCallback):
    """From the first step on, only so much more may be taken."""

    def __init__(self, room):
        self.room = room

    def on_step_begin(self, *_, **__):
        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + self.room * MIB, resource.RLIM_INFINITY))


def main(folder, room):
    torch.set_num_threads(1)
    make_tiny_model(folder, architecture="llama", hidden=64, layers=2, vocab="abcdefgh", intermediate_size=32_000)
    args = GRPOPlusConfig(
        f"{folder}/out", per_device_train_batch_size=8, num_generations=8, max_steps=2, max_completion_length=64,
        generation_kwargs={"min_new_tokens": 60}, rollout="auto", beta=0.1, learning_rate=0.1, optim="sgd",
        max_grad_norm=0.0, logging_steps=1, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": prompt} for prompt in ("ab", "cdc", "ef", "gghg")])
    trainer = GRPOPlusTrainer(folder, letters, args, rows)
    if room:
        trainer.add_callback(Fence(room))
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    pairs = zip(trainer.model.parameters(), before, strict=True)
    moved = [float((parameter.detach() - start).double().norm()) for parameter, start in pairs]
    print("FOUND", json.dumps({"retries": trainer.pipeline.retry.count, "moved": moved}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

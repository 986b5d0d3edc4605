"""One generation batch trained on in different splits; also run on two ranks, as a script.

The completions are fixed: they share prefixes, differ in length, hold a tool's words, and two run out of tokens.
"""

import gc
import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.training.hooks import Hook
from tests.device import DEVICE
from tests.objectives.runs import RUN

END = "<|im_end|>"
ANSWERS = ["12" + END, "12345678", "1" + END, "13 " + END, "7" + END, "78 9" + END, "abcdefgh", "78 a" + END]
TOOL_WORDS = {3: (1, 2), 5: (0, 1)}  # completion: tokens that were not written by the policy
SETTINGS = {**RUN, "max_completion_length": 8, "num_iterations": 2, "max_steps": 3, "optim": "sgd"}
SETTINGS |= {"learning_rate": 0.0, "max_grad_norm": 0.0, "mask_truncated_completions": True, "engine": "stock"}
COMPOSITIONS = {
    **{name: {"objective": name, "beta": 0.1} for name in ("grpo", "sequence_grpo", "dr_grpo", "dapo", "gspo")},
    **{name: {"objective": name, "beta": 0.1} for name in ("gspo_token", "cispo", "dis", "dppo_tv", "dppo_kl", "up")},
    **{name: {"objective": name, "beta": 0.1} for name in ("fipo", "sapo", "luspo", "vespo", "gmpo")},
    **{name: {"objective": name, "beta": 0.1} for name in ("reinforce", "ppo_clip")},
    "grpo_clip": {"objective": "grpo_clip"},
    "target": {"objective": "target", "num_generations": 8},  # on two ranks, the group spans both
    "tpo": {"objective": "tpo", "beta": 0.1, "num_generations": 8},
    "real": {"objective": "real", "beta": 0.1, "num_generations": 8},
    "tpo, two groups": {"objective": {"name": "tpo", "eta": 0.5, "score": "mean"}},
    "prompt_mean": {"objective": {"name": "grpo", "reduce": "prompt_mean"}},
    "entropy": {"objective": "dapo", "entropy_coef": 0.1},
    "single": {"objective": "reinforce", "advantage": "raw", "num_generations": 1},
    "kl_reward": {"objective": {"name": "grpo", "kl": {"placement": "reward"}}, "beta": 0.1},
}
IN_TWO_RANKS = ("grpo", "vespo", "target", "tpo", "real", "prompt_mean", "single", "kl_reward")
SHARED_IN_TWO_RANKS = (
    *("grpo", "dapo", "dr_grpo", "luspo", "target", "tpo", "real", "prompt_mean", "entropy", "single", "kl_reward"),
    *("TRL's grpo", "TRL's dapo", "TRL's luspo"),
)
SHARES = (2.0, 0.5, 0.0, 1.0, 1.5, 4.0, 0.25, 1.0)
OWN = ("grpo", "dapo", "dr_grpo", "sapo", "luspo", "cispo", "vespo")
WITH_SHARES = {**COMPOSITIONS, **{f"TRL's {name}": {"objective": None, "loss_type": name} for name in OWN}}


def reward(completions, **_):
    return [len(set(text)) / 8 + ("7" in text) for text in completions]


def rollout(prompts, trainer):
    tokenizer = trainer.processing_class
    first = trainer.accelerator.process_index * len(prompts)
    completions = [tokenizer.encode(ANSWERS[(first + row) % len(ANSWERS)]) for row in range(len(prompts))]
    masks = [
        [0 if position in TOOL_WORDS.get((first + row) % len(ANSWERS), ()) else 1 for position in range(len(ids))]
        for row, ids in enumerate(completions)
    ]
    return {
        "prompt_ids": [tokenizer.encode(prompt) for prompt in prompts],
        "completion_ids": completions,
        "logprobs": None,
        "env_mask": masks,
    }


class Shared(Hook):
    """Gives the rows of each generation batch shares, and keeps the tokens that they come to."""

    def __init__(self, shares):
        self.shares = shares

    def sampled(self, batch):
        rows = len(batch.completions)
        first = self.host.accelerator.process_index * rows
        here = [self.shares[(first + row) % len(self.shares)] for row in range(rows)]
        return batch.adding(share=torch.tensor(here, device=DEVICE))

    def batch(self, batch):
        self.tokens = float(batch.output["num_items_in_batch"])


class Keep(TrainerCallback):
    """Keeps the gradient of each step, after which weights move in a fixed way."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.seen.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]).clone())

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **_):
        for weight in model.parameters():
            weight.mul_(1.02)


def gradients(model, output_dir, *, rows=8, accumulation=1, shares=None, **settings):
    """The gradients of three optimizer steps, on-policy, off it, and on a new batch: weights move in a fixed way."""
    keep = Keep()
    split = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulation}
    config = GRPOPlusConfig(output_dir=str(output_dir), **{**SETTINGS, **split, **settings})
    prompts = Dataset.from_dict({"prompt": ["1+1=", "what is 30?"] * (4 if config.num_generations == 1 else 1)})
    hooks = [] if shares is None else [Shared(shares)]
    trainer = GRPOPlusTrainer(model, reward, config, prompts, rollout_func=rollout, callbacks=[keep], hooks=hooks)
    gc.freeze()  # the trainer collects garbage when it starts, among all that was ever imported
    trainer.train()
    return keep.seen, trainer


def stopped(model, folder):
    """Inner iterations that end early: what this rank skipped, and where its weights ended."""
    settings = {"num_iterations": 30, "max_steps": 30, "learning_rate": 1e-2, "optim": "adamw_torch"}
    settings |= {"lr_scheduler_type": "linear", "mask_truncated_completions": False}
    settings |= {"objective": {"name": "target", "stop_fraction": 0.9}}
    config = GRPOPlusConfig(output_dir=str(folder / "out"), **{**SETTINGS, **settings})
    prompts = Dataset.from_dict({"prompt": ["1+1=", "what is 30?"]})
    trainer = GRPOPlusTrainer(model, reward, config, prompts, rollout_func=rollout)
    skipped = []
    inner, step = trainer.pipeline.inner, trainer.pipeline.inner.step
    inner.step = lambda run: (step(run), skipped.append(inner._skipped))[0]
    trainer.train()
    result = {"skipped": skipped, "rate": trainer.lr_scheduler.get_last_lr()[0]}
    result |= {"weights": [float(weight.double().sum()) for weight in trainer.model.parameters()]}
    Path(folder, f"stopped_{trainer.accelerator.process_index}.json").write_text(json.dumps(result))


def main(model, folder):
    out, split = Path(folder) / "out", {"rows": 4, "accumulation": 1}
    found = {}
    for name in IN_TWO_RANKS:
        found[name], trainer = gradients(model, out, **split, **COMPOSITIONS[name])
        assert trainer.accelerator.num_processes == 2
    for name, composition in WITH_SHARES.items():
        if name in SHARED_IN_TWO_RANKS:
            found[f"{name}, shares"], _ = gradients(model, out, **split, shares=SHARES, **composition)
    if trainer.accelerator.is_main_process:
        torch.save(found, Path(folder) / "gradients.pt")
    stopped(model, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

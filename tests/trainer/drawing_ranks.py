"""Dead groups on the ranks there are: completions that depend on the prompt and the place in its group only."""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate.utils import gather_object
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.training.hooks import Hook
from tests.trainer.conftest import SETTINGS, weights

rank = int(os.environ.get("RANK", "0"))
NUMBERS = [7 * place % 29 + 100 ** (place % 3) for place in range(24)]


def rollout(prompts, trainer):
    """Of three completions a prompt or of four the first ones, of one the fourth."""
    tokenizer, size = trainer.processing_class, trainer.num_generations
    rows = range(rank * len(prompts), (rank + 1) * len(prompts))
    members = [3 if size == 1 else row % size for row in rows]
    numbers = [int(prompt.split("+")[0]) for prompt in prompts]
    texts = [f"{number}={'ab'[member % 2] * member}" for number, member in zip(numbers, members, strict=True)]
    ids = [
        tokenizer.encode(text) + [tokenizer.eos_token_id] * (member % 2)
        for text, member in zip(texts, members, strict=True)
    ]
    return {
        "prompt_ids": [tokenizer.encode(prompt) for prompt in prompts],
        "completion_ids": ids,
        "logprobs": None,
        "env_mask": [[int(place != 1) for place in range(len(row))] for row in ids],
        "member": members,
    }


def score(number, member):
    """Tied throughout, tied at first, with contrast; some are not scored."""
    if number % 5 == 1 and member == 2:
        return None
    if number % 3 == 0:
        return 1.0
    return float(member == 3) if number % 3 == 1 else float(member % 2)


def reward(prompts, member, log_extra, **_):
    log_extra("member", member)
    return [score(int(prompt.split("+")[0]), at) for prompt, at in zip(prompts, member, strict=True)]


def steps(prompts, completion_ids, member, **_):
    numbers = [int(prompt.split("+")[0]) for prompt in prompts]
    found = [
        [(0, 1, score(number, at)), (1, len(ids), 1.0)]
        for number, at, ids in zip(numbers, member, completion_ids, strict=True)
    ]
    return [row[: 1 + at % 2] for row, at in zip(found, member, strict=True)]


class Watch(Hook):
    """Keeps what is trained with, in the order of the whole batch, and the rows of each rank."""

    def __init__(self):
        self.batches, self.each = [], []

    def draw(self, draw, rows):
        self.each[-1:] = [[*self.each[-1], len(rows)]]
        return draw(rows)

    def batch(self, output):
        drawn = self.host._advantages.drawn
        shown = {}
        for name in ("prompt", "completion", "tool"):
            ids = output["completion_ids" if name == "tool" else f"{name}_ids"]
            mask = output["completion_mask"] * output["tool_mask"] if name == "tool" else output[f"{name}_mask"]
            shown[name] = [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
        shown["advantages"] = output["advantages"].reshape(len(output["advantages"]), -1).tolist()
        shown["share"] = output.get("share", torch.ones(len(shown["prompt"]))).tolist()
        shown["texts"], shown["rows"] = list(drawn.completions.texts), [row["prompt"] for row in drawn.completions.rows]
        shown["verdicts"] = [live.status.value for (live,) in self.host.verification.verdicts(len(shown["prompt"]))]
        whole = {name: gather_object(values) for name, values in shown.items()}
        steps = (
            None
            if drawn.steps is None
            else [one.tolist() for one in (drawn.steps.rows, drawn.steps.scores.nan_to_num(-1), drawn.steps.spans)]
        )
        everywhere = [drawn.rewards.nan_to_num(-1).tolist(), drawn.lengths.tolist(), drawn.truncated.tolist(), steps]
        self.batches.append((whole, everywhere, int(output["num_items_in_batch"])))
        self.each.append([])


def run(folder, model, per_device, **settings):
    torch.manual_seed(0)
    plain = {"max_steps": 3, "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    plain |= {"max_completion_length": 16, "per_device_train_batch_size": per_device}
    verifiers = [{"name": "regex", "kwargs": {"pattern": ".*b"}, "weight": 0.0}]
    config = GRPOPlusConfig(output_dir=folder + "/out", verifiers=verifiers, **{**SETTINGS, **plain, **settings})
    data = Dataset.from_dict({"prompt": [f"{number}+1=" for number in NUMBERS], "answer": ["a"] * 24})
    scorer = steps if settings.get("advantage") == "process" else None
    watch = Watch()
    watch.each.append([])
    trainer = GRPOPlusTrainer(model, [reward], config, data, rollout_func=rollout, step_scorer=scorer, hooks=[watch])
    before = weights(trainer)
    trainer.train()
    moved = before - weights(trainer)
    table = trainer._logs
    names = ("prompt", "completion", "advantages")
    columns = {name: list(table[name]) for name in names} | {
        kind: {
            name: [None if str(value) == "nan" else value for value in values] for name, values in table[kind].items()
        }
        for kind in ("rewards", "extra")
    }
    told = ("dead_groups/", "reward", "completions/", "advantages/", "loss", "num_tokens")
    logs = [
        {name: value for name, value in entry.items() if name.startswith(told)} for entry in trainer.state.log_history
    ]
    return {
        "world": trainer.accelerator.num_processes,
        "each": watch.each[:-1],
        "batches": watch.batches,
        "moved": moved.tolist(),
        "table": columns,
        "logs": logs,
        "state": trainer.drawing.state_dict(),
    }


if __name__ == "__main__":
    folder, model, runs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    found = {name: run(folder, model, 6, **settings) for name, settings in runs.items()}
    everywhere = gather_object([[one["state"] for one in found.values()]])
    assert everywhere[0] == everywhere[1]
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))

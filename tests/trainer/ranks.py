"""One run on the ranks there are, of completions that depend on their place in the whole batch only.

Each rank answers for its own rows, so that one process and two see the same completions.
"""

import json
import os
import sys
from pathlib import Path

from accelerate.utils import gather_object
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from tests.trainer.conftest import SETTINGS, weights

rank = int(os.environ.get("RANK", "0"))


def letters_and_digits(row):
    return "ab3d5fgh"[: 1 + (5 * row) % 8] + "xyz"[row % 3] * (row % 4)


def lines(row):
    """A solution of one or two lines, some of them wrong, some without an equation."""
    return f"{row}+1={row + 1 + row % 2}" + (f"\n{row}*2={2 * row + row % 3}" if row % 4 else "\nso")


def rollout(prompts, trainer):
    text = lines if trainer.verification.labels else letters_and_digits
    tokenizer = trainer.processing_class
    rows = range(rank * len(prompts), (rank + 1) * len(prompts))
    return {
        "prompt_ids": [tokenizer.encode(prompt) for prompt in prompts],
        "completion_ids": [tokenizer.encode(text(row)) + [tokenizer.eos_token_id] * (row % 2) for row in rows],
        "logprobs": None,
        "row": list(rows),
    }


def letters(completions, row, **_):
    # Rows 8 to 11 are one group without contrast; rows 2 and 7 cannot be scored.
    return [
        None if r in (2, 7) else 0.5 if 8 <= r < 12 else len(set(t)) / 3 for r, t in zip(row, completions, strict=True)
    ]


def late(completions, row, **_):
    return [float(r % 3) if r < 8 else 1.0 for r in row]


def steps(completion_ids, row, **_):
    def score(r, at):
        return None if (r + at) % 5 == 0 else float((r * 7 + at) % 3)

    spans = [[(at, min(at + 2, len(ids))) for at in range(0, len(ids) - 1, 2)] for ids in completion_ids]
    return [[(*span, score(r, span[0])) for span in each] for r, each in zip(row, spans, strict=True)]


def run(folder, model, per_device, **settings):
    scorer = steps if settings.get("advantage") in ("process", "mix") and "verifiers" not in settings else None
    one = {"max_steps": 1, "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    one |= {"max_completion_length": 16, "per_device_train_batch_size": per_device, "shuffle_dataset": False}
    config = GRPOPlusConfig(output_dir=folder + "/out", **{**SETTINGS, **one, **settings})
    data = Dataset.from_dict({"prompt": ["12+3=", "4=", "12+34+5="]})
    trainer = GRPOPlusTrainer(model, [letters, late], config, data, rollout_func=rollout, step_scorer=scorer)
    before = weights(trainer)
    held = {}
    inner = trainer._generate_and_score_completions

    def keep(inputs):
        held.update(inner(inputs))
        return held

    trainer._generate_and_score_completions = keep
    trainer.train()
    gradient = before - weights(trainer)
    advantages = gather_object([row.tolist() for row in held["advantages"].unsqueeze(-1).flatten(1)])
    told = ("advantages/", "steps/", "reward", "loss")
    logged = {k: v for k, v in trainer.state.log_history[0].items() if k.startswith(told)}
    return {
        "world": trainer.accelerator.num_processes,
        "advantages": advantages,
        "logged": list(trainer._logs["advantages"]),
        "gradient": gradient.tolist(),
        "metrics": logged,
    }


if __name__ == "__main__":
    folder, model, runs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    found = {name: run(folder, model, 6, **settings) for name, settings in runs.items()}
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))

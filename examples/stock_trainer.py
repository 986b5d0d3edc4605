"""Verifiers in TRL's own GRPOTrainer: each is a reward function, so nothing else of this project is needed.

Two real training steps of a tiny model, made on the spot, on a CPU: `python examples/stock_trainer.py`.
"""

import os
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_plus.testing import make_tiny_model
from grpo_verifiers import gated, get_verifier, verifier


@verifier("share_of_digits", timeout=2.0)
def share_of_digits(completion: str) -> float:
    """A check of one's own: it runs in worker processes, which never run this script again."""
    return sum(character.isdigit() for character in completion) / max(len(completion), 1)


def main(folder: Path = Path("runs/stock")) -> GRPOTrainer:
    """Train for two steps; returns the trainer, whose log tells how each verifier did."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder.mkdir(parents=True, exist_ok=True)
    make_tiny_model(folder / "model")
    dataset = Dataset.from_list([{"prompt": f"{n}+{n}=", "solution": str(2 * n)} for n in range(16)])
    where = {"answer": "solution"}  # the verifiers' parameter: the dataset's column
    trainer = GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=[
            get_verifier("math", columns=where, timeout=2.0),
            gated(get_verifier("math", columns=where), "think_format", label="format_when_right"),
            get_verifier("share_of_digits"),
        ],
        args=GRPOConfig(
            output_dir=str(folder / "out"),
            reward_weights=[1.0, 0.2, 0.5],
            max_steps=2,
            num_generations=4,
            per_device_train_batch_size=8,
            max_completion_length=16,
            logging_steps=1,  # also: verifiers/<name>/status/<status>, latency_p50 and latency_p95
            log_completions=True,  # also: the status and the reason of every verdict
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=dataset,
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()

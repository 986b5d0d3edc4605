"""Learning on a 4-bit base, stock TRL beside this project: mean reward of the first and last 20 steps, three seeds.

    python -m benchmarks.qlora_learning [--learning-rates 5e-3 5e-4] [--steps 60]

A tiny random model on a CPU, rewarded for one letter. Stock TRL holds the adapters in bfloat16, this project in
float32; the last column says which share of the first adapter matrices' weights has changed at all.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from typing import Any


def main() -> int:
    """Run every case, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning-rates", nargs="+", type=float, default=[5e-3, 5e-4])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.testing import make_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        make_tiny_model(folder, architecture="llama", hidden=64, layers=1, vocab="abcdefgh")
        print(f"{'rate':>8} {'seed':>5} {'':>10} {'first 20':>9} {'last 20':>9} {'changed':>8}")
        for rate in options.learning_rates:
            for seed in options.seeds:
                for name, kind, config in (
                    ("TRL", GRPOTrainer, GRPOConfig),
                    ("grpo_plus", GRPOPlusTrainer, GRPOPlusConfig),
                ):
                    first, last, changed = _run(folder, kind, config, rate, seed, steps=options.steps)
                    print(f"{rate:>8g} {seed:>5} {name:>10} {first:>9.3f} {last:>9.3f} {changed:>8.1%}", flush=True)
    return 0


def _run(folder: str, kind: Any, config: Any, rate: float, seed: int, *, steps: int) -> tuple[float, float, float]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import BitsAndBytesConfig

    with tempfile.TemporaryDirectory() as out:
        args = config(
            output_dir=out, per_device_train_batch_size=16, num_generations=8, max_completion_length=6, max_steps=steps,
            learning_rate=rate, lr_scheduler_type="constant", seed=seed, logging_steps=1, report_to="none",
            use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        run = kind(
            folder,
            _share_of_a,
            args,
            Dataset.from_list([{"prompt": prompt} for prompt in ("ab", "cdc", "ef", "gghg")] * 8),
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
            ),
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        before = {name: value.detach().clone() for name, value in run.model.named_parameters() if "lora_A" in name}
        with contextlib.redirect_stdout(io.StringIO()):
            run.train()
        after = dict(run.model.named_parameters())
        changed = torch.cat([(after[name] != value).flatten() for name, value in before.items()]).float().mean()
        course = [entry["reward"] for entry in run.state.log_history if "reward" in entry]
    return sum(course[:20]) / 20, sum(course[-20:]) / 20, float(changed)


def _share_of_a(completions: list[str], **_: object) -> list[float]:
    return [text.count("a") / max(len(text), 1) for text in completions]


if __name__ == "__main__":
    sys.exit(main())

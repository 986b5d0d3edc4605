"""The settings that Unsloth publishes for GRPO on one card, run by this trainer: peak memory and seconds beside theirs.

    python -m benchmarks.gpu.unsloth                            # every case; those that do not fit say so
    python -m benchmarks.gpu.unsloth --cases notebook --steps 3
    python -m benchmarks.gpu.unsloth --cases tiny --device cpu  # that it runs at all

Needs nothing from the network: weights are random, of the model's own shape, in NF4 with adapters on all linear
layers. They never end a completion early, so every step is the longest one. What is published are figures of their own
runs on their machines; to compare on one card, run their notebook there with the settings of the case and read its peak
(``torch.cuda.max_memory_reserved()``) and the seconds of its steps after the first.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from benchmarks.gpu.random_model import config_of, device_problem, tokenizer

GIB = 1024**3
RL_PAGE = "docs.unsloth.ai/basics/memory-efficient-rl"


@dataclass(frozen=True)
class Case:
    """One published setting; ``published`` is their figure, and ``source`` the page that it was read on."""

    model: str
    prompt: int
    completion: int
    generations: int
    rank: int
    card: int
    published: str
    source: str


CASES = {
    "notebook": Case("llama-8B", 256, 768, 6, 32, 16, "runs on a card of 16 GB", "its notebook Llama3.1 (8B) GRPO"),
    "1.5B": Case("1.5B", 256, 768, 8, 32, 5, "5 GB, lengths not stated", "unsloth.ai/blog/grpo, February 2025"),
    "20k": Case("llama-8B", 256, 20_224, 8, 32, 80, "54.3 GB, where TRL took 510.8 GB", "unsloth.ai/blog/grpo"),
    "47k": Case("llama-8B", 256, 47_244, 8, 32, 80, "the longest context on an H100 of 80 GB", RL_PAGE),
    "tiny": Case("tiny", 16, 16, 4, 4, 0, "no case of theirs: shows that this script runs", ""),
}


def main() -> int:
    """Run every case in a process of its own, and print a table."""
    options = _parser().parse_args()
    if options.one:
        print("RESULT", *_one(CASES[options.cases[0]], options.device, options.steps))
        return 0
    problem = device_problem(options.device)
    if problem is not None:
        sys.exit(f"unsloth: {problem}")
    failed = 0
    print(f"{'case':>9} {'model':>9} {'tokens':>7} {'G':>3} {'peak GiB':>9} {'s/step':>8}   published")
    for name in options.cases:
        case = CASES[name]
        head = f"{name:>9} {case.model:>9} {case.prompt + case.completion:>7} {case.generations:>3}"
        command = [sys.executable, "-m", "benchmarks.gpu.unsloth", "--one", "--cases", name, "--device", options.device]
        done = subprocess.run([*command, "--steps", str(options.steps)], capture_output=True, text=True, check=False)
        found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        told = f"{case.published} ({case.source})" if case.source else case.published
        if not found:
            failed += 1
            why = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"{head} failed: {why[:200]}   {told}", flush=True)
            continue
        peak, seconds = found[-1]
        print(f"{head} {peak:>9} {seconds:>8}   {told}", flush=True)
    return 1 if failed else 0


def _one(case: Case, device: str, steps: int) -> tuple[str, str]:
    """Peak memory in GiB ("-" on a CPU) and seconds of a step, without the first if there are more."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.memory.random_model import random_model

    cuda = device.startswith("cuda")
    model = random_model(_config(case.model), torch.device(device), torch.bfloat16 if cuda else torch.float32)
    prompt = " ".join(str(number % 100) for number in range(case.prompt - 8))
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        args = GRPOPlusConfig(
            output_dir=folder, max_steps=steps, num_generations=case.generations,
            per_device_train_batch_size=1, gradient_accumulation_steps=case.generations,
            max_completion_length=case.completion, rollout="auto", gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False}, learning_rate=5e-6, adam_beta1=0.9, adam_beta2=0.99,
            weight_decay=0.1, warmup_steps=0.1, lr_scheduler_type="cosine", max_grad_norm=0.1,
            optim="paged_adamw_8bit" if cuda else "adamw_torch", report_to="none", save_strategy="no", bf16=cuda,
            use_cpu=not cuda,
        )  # fmt: skip
        trainer = GRPOPlusTrainer(
            model,
            _reward,
            args,
            Dataset.from_list([{"prompt": f"{number} {prompt}"} for number in range(8)]),
            processing_class=tokenizer(model.config.vocab_size),
            peft_config=LoraConfig(
                r=case.rank, lora_alpha=case.rank, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            callbacks=[Clock()],
        )
        start = time.perf_counter()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        trainer.train()
    moments = [start, *ends]
    spent = [after - before for before, after in pairwise(moments)]
    peak = f"{torch.cuda.max_memory_reserved() / GIB:.1f}" if cuda else "-"
    return peak, f"{statistics.median(spent[1:] or spent):.2f}"


def _config(model: str) -> Any:
    """The config of a shape; Llama 3.1 has its own beside those of Qwen."""
    if model != "llama-8B":
        return config_of(model)
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131_072, rope_theta=500_000.0,
    )  # fmt: skip


def _reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[name for name in CASES if name != "tiny"])
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of a case; the first is not timed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

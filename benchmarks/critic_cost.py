"""The cost of a critic over GRPO's update: time and peak memory, on the trunk, an adapter or a model of its own.

    python benchmarks/critic_cost.py                              # about four minutes on one core
    python benchmarks/critic_cost.py --bits 4 --hidden 256        # LoRA on a base in 4 bits (bitsandbytes)
    python benchmarks/critic_cost.py --device cuda --hidden 2048 --layers 16 --dtype bfloat16

All run on the same generation batch, in turn, in one process: GRPO's update (forward, loss and backward), then the same
with the critic's values, its returns and one critic update. What is printed is the median of the ratio round by round.
Peak memory is that of a process of its own, from before its models are made; on a CPU it is the resident set. A critic
on the trunk is promised to cost at most 1.35 times the time and 1.15 times the memory of GRPO's update with LoRA.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from update_phase import CASES, GENERATIONS, generation_batch, made_model, status, timed, update, zero

WAYS = {
    "GRPO": (False, None),
    "GRPO + critic on trunk": (False, "trunk"),
    "GRPO + critic on model": (False, "model"),
    "GRPO with LoRA": (True, None),
    "LoRA + critic on trunk": (True, "trunk"),
    "LoRA + critic on adapter": (True, "adapter"),
    "LoRA + critic on model": (True, "model"),
}
"""Whether the policy trains LoRA, and what the critic stands on."""
TIME, MEMORY = 1.35, 1.15


def made_base(options: argparse.Namespace) -> str:
    """A folder with a model of random weights."""
    from grpo_plus.testing import make_tiny_tokenizer

    folder, tokenizer = tempfile.mkdtemp(), make_tiny_tokenizer()
    made_model(options, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_trainer(options: argparse.Namespace, way: str) -> Any:
    """A trainer, with a critic or without one."""
    from datasets import Dataset
    from peft import LoraConfig

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    adapts, on = WAYS[way]
    critic = {"advantage": "gae", "critic": {"on": on, "updates": options.updates}} if on else {"advantage": "raw"}
    keywords: dict[str, Any] = {"dtype": options.dtype}
    if options.bits == 4:
        from transformers import BitsAndBytesConfig

        keywords["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    config = GRPOPlusConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=options.device == "cpu",
        bf16=False,
        report_to="none",
        report=False,
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=1,
        num_generations=GENERATIONS,
        max_completion_length=512,
        gradient_checkpointing=options.checkpointing,
        model_init_kwargs=keywords,
        **critic,
    )
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM") if adapts else None
    rows = Dataset.from_dict({"prompt": ["1+1="] * 64})
    return GRPOPlusTrainer(
        model=options.base, reward_funcs=[zero], args=config, train_dataset=rows, peft_config=adapter
    )


def one_update(trainer: Any, batch: dict[str, torch.Tensor]) -> None:
    """An update of the policy, and all that a critic adds to it."""
    batch = dict(batch)
    if trainer.pipeline.critic is None:
        update(trainer, batch)
        return
    from grpo_plus.training.hooks import Completions, ScoredBatch

    trainer.model.train()
    scored = ScoredBatch(Completions([], [], [], []), torch.zeros(0, 0), output=batch)
    batch = dict(trainer.pipeline.critic.add_values(scored).output)
    batch["critic_returns"] = torch.ones_like(batch["critic_values"])
    batch["advantages"] = batch["advantages"][:, None].expand_as(batch["critic_values"]).clone()
    steps = len(batch["advantages"]) // trainer.args.per_device_train_batch_size
    micro = [{name: _part(value, at, steps) for name, value in batch.items()} for at in range(steps)]
    update(trainer, {name: value for name, value in batch.items() if not name.startswith("critic_")})
    trainer.pipeline.critic._learn(micro)  # noqa: SLF001 - what a training loop has it do after the step


def _part(value: torch.Tensor, at: int, steps: int) -> torch.Tensor:
    return value if value.dim() == 0 else value.chunk(steps)[at]


def peak_mib(options: argparse.Namespace, way: str) -> float:
    """How far memory grows from before the models are made to the most of one update, in MiB."""
    batch = generation_batch(CASES[options.case], options.vocabulary, options.device)
    first = "GRPO" if options.bits == 32 else "GRPO with LoRA"
    trainer = make_trainer(options, first)  # imports, and what libraries keep
    one_update(trainer, {name: value[:GENERATIONS] if value.dim() else value for name, value in batch.items()})
    del trainer
    gc.collect()  # a trainer and its model hold each other
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        one_update(make_trainer(options, way), batch)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # starts the high-water mark anew
    before = status("VmRSS")
    one_update(make_trainer(options, way), batch)
    return (status("VmHWM") - before) / 2**10


def peaks(options: argparse.Namespace, ways: list[str]) -> dict[str, float]:
    """Peak memory of each way, in a process of its own that gives freed memory back at once."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    names = ("hidden", "layers", "vocabulary", "dtype", "device", "case", "updates", "bits", "base")
    flags = [f"--{name}={getattr(options, name)}" for name in names] + ["--checkpointing"] * options.checkpointing
    found = {}
    for way in ways:
        command = [sys.executable, __file__, *flags, "--peak-of", way]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        found[way] = float(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    """Print the table; 1 where a promise of the trunk is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="alive")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bits", type=int, default=32, choices=(4, 32))
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--base", help=argparse.SUPPRESS)
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.base = options.base or made_base(options)
    if options.peak_of:
        print(peak_mib(options, options.peak_of))
        return 0
    ways = [way for way, (adapts, _) in WAYS.items() if adapts or options.bits == 32]
    batch = generation_batch(CASES[options.case], options.vocabulary, options.device)
    trainers = {way: make_trainer(options, way) for way in ways}
    for trainer in trainers.values():
        one_update(trainer, batch)
    rounds = [
        {way: timed(trainer, batch, one_update) for way, trainer in trainers.items()} for _ in range(options.rounds)
    ]
    memory = peaks(options, ways)
    print(f"{options.case}: {CASES[options.case].text}; K = {options.updates}; {options.device}, {options.bits} bits")
    print(f"{'':<26}{'seconds':>9}{'times GRPO':>12}{'peak MiB':>10}{'times GRPO':>12}")
    kept, table = True, []
    for way in ways:
        base = "GRPO with LoRA" if WAYS[way][0] else "GRPO"
        seconds = statistics.median(one[way] for one in rounds)
        slower = statistics.median(one[way] / one[base] for one in rounds)
        larger = memory[way] / memory[base]
        print(f"{way:<26}{seconds:>9.3f}{slower:>12.2f}{memory[way]:>10.0f}{larger:>12.2f}")
        table.append({"way": way, "seconds": seconds, "slower": slower, "mib": memory[way], "larger": larger})
        if way == "LoRA + critic on trunk":
            kept = slower <= TIME and larger <= MEMORY
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=2), encoding="utf-8")
    print(
        f"on the trunk with LoRA: promised {TIME} times the time, {MEMORY} the memory: {'kept' if kept else 'NOT kept'}"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""The update phase against stock TRL: time, tokens a second and peak memory, for made-up generation batches.

    python benchmarks/update_phase.py                      # every case, under three minutes on one core
    python benchmarks/update_phase.py --case typical --rounds 7 --json update.json
    python benchmarks/update_phase.py --device cuda --hidden 2048 --layers 16 --dtype bfloat16

Both trainers update on the same batches, in turn (TRL, ours, TRL, ours, …) in one process; what is printed is the
median of each and of their ratio pair by pair, and how far apart the gradients are. On a CPU peak memory is the growth
of the resident set, measured in a second process with one update each.
"""

# ruff: noqa: SLF001 - TRL has no public way to hand its trainer a generation batch
import argparse
import gc
import json
import logging
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

GENERATIONS = 8


@dataclass(frozen=True)
class Case:
    """A kind of generation batch.

    Attributes:
        text: for the table.
        prompts: shortest and longest prompt.
        completions: median and spread (of the logarithm) of the completion lengths, and their limit.
        dead: part of the groups without any advantage.
        groups: prompts of a generation batch.
        floor: the speed-up that is promised.
    """

    text: str
    prompts: tuple[int, int]
    completions: tuple[float, float, int]
    dead: float
    groups: int
    floor: float


CASES = {
    "typical": Case(
        "prompts 60-200, log-normal lengths, half of the groups dead", (60, 200), (90, 0.7, 400), 0.5, 4, 4.0
    ),
    "alive": Case("the same, no group dead", (60, 200), (90, 0.7, 400), 0.0, 4, 2.5),
    "flat": Case("prompt 12, equal lengths, no group dead", (12, 12), (128, 0.0, 128), 0.0, 4, 0.97),
    "long prompt": Case(
        "prompt 1,000, lengths around 100, half of the groups dead", (1000, 1000), (100, 0.2, 200), 0.5, 2, 5.0
    ),
}


@dataclass
class Result:
    """What one case gave."""

    case: str
    stock_s: float
    ours_s: float
    speedup: float
    floor: float
    stock_tokens_per_s: float
    ours_tokens_per_s: float
    stock_peak_mib: float
    ours_peak_mib: float
    gradient_distance: float
    tokens_saved: float


def generation_batch(case: Case, vocabulary: int, device: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch as TRL makes it: prompts padded left, completions right, to the longest of all."""
    random = torch.Generator().manual_seed(seed)
    median, spread, limit = case.completions
    prompts = torch.randint(case.prompts[0], case.prompts[1] + 1, (case.groups,), generator=random).tolist()
    rows = case.groups * GENERATIONS
    lengths = (torch.randn(rows, generator=random) * spread + math.log(median)).exp().round().long().clamp(4, limit)
    left, right = max(prompts), int(lengths.max())
    prompt_mask = torch.arange(left) >= left - torch.tensor(prompts).repeat_interleave(GENERATIONS)[:, None]
    texts = torch.randint(5, vocabulary, (case.groups, left), generator=random).repeat_interleave(GENERATIONS, 0)
    completion_mask = torch.arange(right) < lengths[:, None]
    completions = torch.randint(5, vocabulary, (rows, right), generator=random)
    advantages = torch.randn(rows, generator=random)
    advantages[: int(case.dead * case.groups) * GENERATIONS] = 0
    batch = {
        "prompt_ids": texts * prompt_mask,
        "prompt_mask": prompt_mask.long(),
        "completion_ids": completions * completion_mask,
        "completion_mask": completion_mask.long(),
        "advantages": advantages,
        "num_items_in_batch": completion_mask.sum(),
    }
    return {name: value.to(device) for name, value in batch.items()}


def made_model(options: argparse.Namespace, tokenizer: Any) -> Any:
    """A model of random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    heads = options.hidden // 64
    shape = AutoConfig.for_model(
        "qwen2",
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(shape, dtype=getattr(torch, options.dtype))


def make_trainer(options: argparse.Namespace, *, ours: bool) -> Any:
    """TRL's trainer or ours, on equal models."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.testing import make_tiny_tokenizer

    tokenizer = make_tiny_tokenizer()
    model = made_model(options, tokenizer)
    config: Any = (GRPOPlusConfig if ours else GRPOConfig)(
        output_dir=tempfile.mkdtemp(),
        use_cpu=options.device == "cpu",
        bf16=False,
        report_to="none",
        per_device_train_batch_size=options.rows,
        gradient_accumulation_steps=1,
        num_generations=GENERATIONS,
        max_completion_length=512,
        gradient_checkpointing=options.checkpointing,
    )
    return (GRPOPlusTrainer if ours else GRPOTrainer)(
        model=model,
        reward_funcs=[zero],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["1+1="] * 64}),
        processing_class=tokenizer,
    )


def zero(completions: list[str], **_: Any) -> list[float]:
    """A reward; it is never asked for."""
    return [0.0] * len(completions)


def update(trainer: Any, batch: dict[str, torch.Tensor]) -> list[dict[str, float]]:
    """Forward, loss and backward over a generation batch, as one optimizer step; gives what the engine reports."""
    steps = len(batch["advantages"]) // trainer.args.per_device_train_batch_size
    trainer.args.steps_per_generation = trainer.args.gradient_accumulation_steps = steps
    trainer.current_gradient_accumulation_steps = steps
    trainer._generate_and_score_completions = lambda _: dict(batch)
    trainer._step, trainer._buffered_inputs = 0, None
    trainer.model.train()
    trainer.model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    reports = []
    for _ in range(steps):
        loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs([{}]))
        trainer.accelerator.backward(loss)
        trainer._step += 1
        reports.append(dict(trainer.engine.metrics) if hasattr(trainer, "engine") else {})
    return reports


def timed(
    trainer: Any, batch: dict[str, torch.Tensor], once: Callable[[Any, dict[str, torch.Tensor]], Any] = update
) -> float:
    """Seconds of one update."""
    cuda = next(iter(batch.values())).is_cuda
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    once(trainer, batch)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_mib(trainer: Any, batch: dict[str, torch.Tensor]) -> float:
    """How far memory grows during one update, in MiB."""
    gc.collect()
    trainer.model.zero_grad(set_to_none=True)
    if next(iter(batch.values())).is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        update(trainer, batch)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # starts the high-water mark anew
    before = status("VmRSS")
    update(trainer, batch)
    return (status("VmHWM") - before) / 2**10


def status(name: str) -> int:
    """A figure of this process, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


def distance(ours: Any, host: Any) -> float:
    """Size of the difference of the gradients over the size of TRL's."""
    pairs = zip(ours.model.parameters(), host.model.parameters(), strict=True)
    grads = [(a.grad.double(), b.grad.double()) for a, b in pairs if b.grad is not None and a.grad is not None]
    size = sum(float(b.square().sum()) for _, b in grads)
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in grads) / size)


def peaks_of(options: argparse.Namespace) -> dict[str, list[float]]:
    """Peak memory of each case, TRL's and ours; on a CPU from a process that gives freed memory back at once."""
    if options.device != "cpu":
        return measure_peaks(options)
    if not sys.platform.startswith("linux"):
        return {name: [math.nan, math.nan] for name in options.case}
    flags = [f"--{name}={getattr(options, name)}" for name in ("rows", "hidden", "layers", "vocabulary", "dtype")]
    flags += ["--checkpointing"] * options.checkpointing
    command = [sys.executable, __file__, "--peaks-only", *flags, "--case", *options.case]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=1800, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_peaks(options: argparse.Namespace) -> dict[str, list[float]]:
    """The same, in this process."""
    trainers = [make_trainer(options, ours=False), make_trainer(options, ours=True)]
    small = generation_batch(CASES["flat"], options.vocabulary, options.device)
    found = {}
    for trainer in trainers:
        update(trainer, small)  # whatever is set up once
    for name in options.case:
        batch = generation_batch(CASES[name], options.vocabulary, options.device)
        found[name] = [round(peak_mib(trainer, batch), 1) for trainer in trainers]
    return found


def measure(options: argparse.Namespace) -> list[Result]:
    """Every case."""
    peaks = peaks_of(options)
    host, ours = make_trainer(options, ours=False), make_trainer(options, ours=True)
    results = []
    for name in options.case:
        case = CASES[name]
        batch = generation_batch(case, options.vocabulary, options.device)
        if name == options.case[0] or options.device != "cpu":
            update(host, generation_batch(CASES["flat"], options.vocabulary, options.device))
            update(ours, generation_batch(CASES["flat"], options.vocabulary, options.device))
        # Short cases are noisy: more pairs of them fit into the same time.
        rounds = options.rounds * (3 if name == "flat" else 1)
        pairs = [(timed(host, batch), timed(ours, batch)) for _ in range(rounds)]
        saved = [report["engine/tokens_saved"] for report in update(ours, batch)]
        stock_s, ours_s = (statistics.median(times) for times in zip(*pairs, strict=True))
        tokens = int(batch["prompt_mask"].sum() + batch["completion_mask"].sum())
        results.append(
            Result(
                case=name,
                stock_s=stock_s,
                ours_s=ours_s,
                speedup=statistics.median(a / b for a, b in pairs),
                floor=case.floor,
                stock_tokens_per_s=tokens / stock_s,
                ours_tokens_per_s=tokens / ours_s,
                stock_peak_mib=peaks[name][0],
                ours_peak_mib=peaks[name][1],
                gradient_distance=distance(ours, host),
                tokens_saved=statistics.mean(saved),
            )
        )
        show(results[-1])
    return results


def show(result: Result) -> None:
    """One row of the table."""
    mark = "" if result.speedup >= result.floor and result.ours_peak_mib <= result.stock_peak_mib * 1.02 else "  below"
    print(
        f"| {result.case} | {CASES[result.case].text} | {result.stock_s:.2f} | {result.ours_s:.2f} | "
        f"{result.speedup:.2f} ({result.floor}) | {result.stock_tokens_per_s:,.0f} → {result.ours_tokens_per_s:,.0f} | "
        f"{result.stock_peak_mib:.0f} → {result.ours_peak_mib:.0f} | {result.tokens_saved:.0%} | "
        f"{result.gradient_distance:.0e} |{mark}",
        flush=True,
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3, help="pairs of updates a case")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--peaks-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.hidden % 64 or GENERATIONS * 2 % options.rows:
        parser.error("--rounds must be positive, --hidden a multiple of 64, and --rows a divisor of 16")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit code says whether every promise was kept."""
    options = parse(arguments)
    logging.getLogger("grpo_plus.engine").setLevel(logging.ERROR)
    if options.device == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if options.peaks_only:
        print(json.dumps(measure_peaks(options)))
        return 0
    print("| case | | TRL s | ours s | faster (promised) | tokens/s | peak MiB | tokens saved | gradient off by |")
    print("|---|---|---|---|---|---|---|---|---|")
    results = measure(options)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n", encoding="utf-8")
    kept = all(r.speedup >= r.floor and r.ours_peak_mib <= r.stock_peak_mib * 1.02 for r in results)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""One full GRPO step of each size on cards of 8 to 24 GB, by a fence around the process: measured peak, and planned.

    python -m benchmarks.gpu.fit                          # every size on every card it is planned to fit
    python -m benchmarks.gpu.fit --sizes 8B --cards 12
    python -m benchmarks.gpu.fit --sizes tiny --device cpu --completion-length 8    # that it runs at all

Needs nothing from the network. The fence (a fraction of the card's memory) bounds what PyTorch may take, not CUDA's own
context: that part of the planner's allowance is reported as it is. Random weights never end a completion early, so the
step is the worst one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.random_model import SHAPES, config_of, device_problem, random_4bit_model, tokenizer

CARDS = (8, 12, 16, 24)


def main() -> int:
    """Run every case in a process of its own, and print a table."""
    options = _parser().parse_args()
    if options.one:
        print("RESULT " + json.dumps(_one(options)))
        return 0
    problem = device_problem(options.device)
    if problem is not None:
        sys.exit(f"fit: {problem}")
    failed = 0
    heads = ("size", "card", "C", "batch", "rows", "planned", "measured", "ratio", "s")
    print("{:>6} {:>5} {:>6} {:>6} {:>5} {:>8} {:>9} {:>6} {:>7}".format(*heads))
    for size in options.sizes:
        for card in options.cards:
            command = [sys.executable, "-m", "benchmarks.gpu.fit", "--one", "--sizes", size, "--cards", str(card)]
            command += ["--completion-length", str(options.completion_length), "--device", options.device]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
            except subprocess.TimeoutExpired:
                failed += 1
                print(f"{size:>6} {card:>5} took more than {options.timeout:g} s: give more with --timeout", flush=True)
                continue
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if not lines:
                failed += 1
                print(f"{size:>6} {card:>5} failed:\n{done.stderr[-1500:]}")
                continue
            found = json.loads(lines[-1].removeprefix("RESULT "))
            if "planned" not in found:
                print(f"{size:>6} {card:>5} {found['why']}")
                continue
            measured = found["measured"]
            ratio = "" if measured is None else f"{measured / found['planned']:.2f}"
            print(
                f"{size:>6} {card:>5} {found['completion_length']:>6} {found['micro_batch']:>6} {found['rows']:>5} "
                f"{found['planned']:>8.2f} {'-' if measured is None else f'{measured:.2f}':>9} {ratio:>6} "
                f"{found['seconds']:>7.1f}" + (f"  {found['retries']} retries" if found["retries"] else ""),
                flush=True,
            )
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    return 1 if failed else 0


def _one(options: argparse.Namespace) -> dict[str, object]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.memory.estimate import GIB, RUNTIME, Settings
    from grpo_plus.memory.fit import DoesNotFitError, fit
    from grpo_plus.memory.shape import shape_of

    size, card = options.sizes[0], options.cards[0]
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    asked = Settings(micro_batch=4, rollout_rows=16, prompts=2, completion_length=options.completion_length)
    try:
        found = fit(shape_of(config_of(size), size), asked, card * GIB, generations=8)
    except DoesNotFitError as error:
        return {"why": str(error)}
    chosen = found.settings
    if cuda:
        whole = torch.cuda.get_device_properties(0).total_memory
        if card * GIB > whole * 1.05:  # a card of so many GB may show a little less
            return {"why": f"the card that is here has {whole / GIB:.1f} GiB"}
        torch.cuda.set_per_process_memory_fraction(min(1.0, (card * GIB - RUNTIME) / whole))
    dtype = torch.bfloat16 if cuda else torch.float32
    words = tokenizer(config_of(size).vocab_size)
    prompt = " ".join(str(number % 100) for number in range(chosen.prompt_length))
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOPlusConfig(
            output_dir=folder, max_steps=1, num_generations=8, per_device_train_batch_size=chosen.micro_batch,
            gradient_accumulation_steps=16 // chosen.micro_batch, max_completion_length=chosen.completion_length,
            rollout="auto", rollout_rows=chosen.rollout_rows, gradient_checkpointing=chosen.checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False}, learning_rate=2e-5, report_to="none",
            save_strategy="no", optim="paged_adamw_8bit" if cuda else "adamw_torch", bf16=cuda, use_cpu=not cuda,
        )  # fmt: skip
        trainer = GRPOPlusTrainer(
            random_4bit_model(size, device, dtype),
            _reward,
            args,
            Dataset.from_list([{"prompt": f"{number} {prompt}"} for number in range(8)]),
            processing_class=words,
            peft_config=LoraConfig(r=chosen.rank, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
        retries = trainer.retry.count  # a step that went through in smaller parts did not fit as planned
    return {
        "size": size,
        "card": card,
        "micro_batch": chosen.micro_batch,
        "rows": chosen.rollout_rows,
        "completion_length": chosen.completion_length,
        "planned": found.estimate.peak / GIB,
        "planned_parts": {name: size / GIB for name, size in found.estimate.parts().items()},
        "measured": (torch.cuda.max_memory_reserved() + RUNTIME) / GIB if cuda else None,
        "allocated": torch.cuda.max_memory_allocated() / GIB if cuda else None,
        "seconds": seconds,
        "retries": retries,
    }


def _reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=["0.5B", "1.5B", "3B", "8B", "14B"])
    parser.add_argument("--cards", nargs="+", type=int, default=list(CARDS))
    parser.add_argument("--completion-length", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="append every result to this file, one JSON object a line")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one case")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""A run behind a fence that its update does not fit in: does it go on, and does it come out as without the fence?

    python -m benchmarks.gpu.out_of_memory                       # full, LoRA and 4 bits, fenced at 80% of the peak
    python -m benchmarks.gpu.out_of_memory --kinds 4bit --share 0.6
    python -m benchmarks.gpu.out_of_memory --size tiny --device cpu --completion-length 8        # that it runs at all

The first run has the whole card and shows the peak; the second may take a share of that.
The fence is put up after the completions are drawn, so that both train on the same ones. Not run on a GPU yet.
"""

import argparse
import sys
import tempfile
from typing import Any

KINDS = ("full", "lora", "4bit")


def main() -> int:
    """Run every kind twice, and print what came of it."""
    options = _parser().parse_args()
    import torch

    from benchmarks.gpu.random_model import device_problem

    problem = device_problem(options.device)
    if problem is not None:
        sys.exit(f"out_of_memory: {problem}")
    device = torch.device(options.device)
    print(f"{'kind':>5} {'peak GiB':>9} {'fence GiB':>10} {'retries':>8} {'step apart by':>14}")
    for kind in options.kinds:
        peak, _, moved = _run(kind, options, device, None)
        fence = None if peak is None else options.share * peak
        _, retries, again = _run(kind, options, device, fence)
        apart = float((again - moved).norm() / moved.norm())
        sizes = ("-", "-") if peak is None or fence is None else (f"{peak / 2**30:.2f}", f"{fence / 2**30:.2f}")
        print(f"{kind:>5} {sizes[0]:>9} {sizes[1]:>10} {retries:>8} {apart:>14.1e}", flush=True)
    return 0


def _run(kind: str, options: argparse.Namespace, device: Any, fence: float | None) -> tuple[float | None, int, Any]:
    """Peak of a step's memory, how often it was tried again, and by how much it moved the weights."""
    import gc

    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback

    from benchmarks.gpu.random_model import config_of, tokenizer
    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.memory.random_model import random_model

    cuda = device.type == "cuda"

    class Fence(TrainerCallback):
        """Stands from the first generation on."""

        def on_substep_end(self, *_: Any, **__: Any) -> None:
            if cuda and fence is not None:
                torch.cuda.empty_cache()
                whole = torch.cuda.get_device_properties(0).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, fence / whole))

    if cuda:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    config = config_of(options.size)
    adapters = None if kind == "full" else LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOPlusConfig(
            output_dir=folder, max_steps=1, num_generations=8, per_device_train_batch_size=8,
            gradient_accumulation_steps=2, max_completion_length=options.completion_length, rollout="auto",
            learning_rate=1e-3, optim="sgd", max_grad_norm=0.0, report_to="none", save_strategy="no",
            logging_strategy="no", disable_tqdm=True, bf16=cuda, use_cpu=not cuda,
        )  # fmt: skip
        trainer: Any = GRPOPlusTrainer(
            random_model(config, device, torch.bfloat16 if cuda else torch.float32, four_bit=kind == "4bit"),
            _reward,
            args,
            Dataset.from_list([{"prompt": f"{number} 1 2 3"} for number in range(8)]),
            processing_class=tokenizer(config.vocab_size),
            peft_config=adapters,
            callbacks=[Fence()],
        )
        trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
        before = [parameter.detach().to("cpu", torch.float32, copy=True) for parameter in trained]
        trainer.train()
        moved = [p.detach().float().cpu() - start for p, start in zip(trained, before, strict=True)]
        retries = trainer.retry.count
        del trainer, trained
    gc.collect()
    return torch.cuda.max_memory_reserved() if cuda else None, retries, torch.cat([part.flatten() for part in moved])


def _reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def _parser() -> argparse.ArgumentParser:
    from benchmarks.gpu.random_model import SHAPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SHAPES, default="0.5B")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--share", type=float, default=0.8, help="of the peak without a fence")
    parser.add_argument("--completion-length", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    return parser


if __name__ == "__main__":
    sys.exit(main())

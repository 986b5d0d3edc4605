"""One process or rank of `benchmarks.engines`: seconds of the update, `engine: auto` and `stock` in turn.

usage: engines_rank.py LAYOUT OUT ROUNDS HIDDEN
"""

# ruff: noqa: SLF001 - accelerate has no public way to begin another run in the same process
import gc
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.testing import make_tiny_model

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
ROWS, STEPS = 32, 3
SETTINGS = {
    "verifiers": [],
    "advantage": "zscore",
    "objective": "dapo",
    "max_steps": STEPS,
    "num_generations": 8,
    "per_device_train_batch_size": ROWS // WORLD,
    "max_completion_length": 128,
    "learning_rate": 1e-4,
    "beta": 0.0,
    "bf16": False,
    "gradient_checkpointing": False,
    "optim": "adamw_torch",
    "logging_steps": 1,
    "save_strategy": "no",
    "shuffle_dataset": False,
    "report_to": "none",
    "disable_tqdm": True,
    "report": False,
}


class Fixed(GRPOPlusTrainer):
    """Completions of lengths between 8 tokens and all, by the prompt, the place in its group, and the step."""

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        seen: dict[tuple[int, ...], int] = {}
        found = []
        for ids in prompt_ids:
            place = seen[tuple(ids)] = seen.get(tuple(ids), -1) + 1
            draw = random.Random(f"{ids}/{place}/{self.state.global_step}")
            length = min(int(draw.lognormvariate(3.7, 0.6)) + 8, self.max_completion_length)
            found.append([draw.randint(5, 60) for _ in range(length)])
        return found, None


def half_dead(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """Every second prompt's group is without contrast."""
    return [
        0.0 if len(prompt) % 2 else sum(map(ord, text)) % 7 / 7
        for prompt, text in zip(prompts, completions, strict=True)
    ]


def run(layout: str, engine: str, model: Path) -> list[float]:
    """Seconds of the updates of a short run, without the first, in which things are set up."""
    if layout == "ZeRO-2":
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    plain = layout in ("one process", "DDP")
    on_cpu = not torch.cuda.is_available()
    further = {"use_cpu": on_cpu} if plain else {"ddp_backend": "gloo"} if on_cpu else {}
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOPlusConfig(output_dir=folder, engine=engine, **SETTINGS, **further)
        if layout == "FSDP2" and on_cpu:
            args.device  # noqa: B018 - makes the state, which knows no FSDP on a CPU
            PartialState().distributed_type = DistributedType.MULTI_GPU
        data = Dataset.from_dict(
            {"prompt": [f"{number}+{'1' * 64}{'?' * (number % 2)}=" for number in range(100, 164)]}
        )
        torch.manual_seed(0)
        trainer = Fixed(str(model), half_dead, args, data)
        trainer.train()
        seconds = [entry["time/update"] for entry in trainer.state.log_history if "time/update" in entry]
        if layout == "FSDP2":
            assert trainer.accelerator.is_fsdp2, "accelerate did not enter FSDP2"
        if layout == "ZeRO-2":
            assert trainer.is_deepspeed_enabled, "accelerate did not enter DeepSpeed"
    del trainer
    gc.collect()
    return seconds[1:]


def main(layout: str, out: str, rounds: str, hidden: str) -> None:
    """Both engines in turn; the first round warms up."""
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"auto": [], "stock": []}
    with tempfile.TemporaryDirectory() as folder:
        model, own = make_tiny_model(hidden=int(hidden), layers=4)
        model.save_pretrained(folder)
        own.save_pretrained(folder)
        for at in range(int(rounds) + 1):
            for engine in ("auto", "stock") if at % 2 else ("stock", "auto"):
                seconds = statistics.median(run(layout, engine, Path(folder)))
                if at:
                    found[engine].append(seconds)
    if int(os.environ.get("RANK", "0")) == 0:
        Path(out).write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What the checks that train share: settings, prompts and rewards."""

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.check import Context


def settings(context: Context, **further: Any) -> dict[str, Any]:
    """Training arguments: nothing saved, nothing reported, 16 bits on a card."""
    return {
        "output_dir": str(context.folder), "report_to": "none", "save_strategy": "no", "logging_strategy": "no",
        "disable_tqdm": True, "use_cpu": not context.cuda, "bf16": context.cuda, "gradient_checkpointing": False,
        **further,
    }  # fmt: skip


def prompts(count: int, length: int) -> Any:
    """Different prompts of so many tokens of `number_tokenizer`."""
    from datasets import Dataset

    words = " ".join(str(number % 100) for number in range(length - 1))
    return Dataset.from_list([{"prompt": f"{number} {words}".strip()} for number in range(count)])


def reward(completion_ids: Sequence[Sequence[int]], **_: object) -> list[float]:
    """Rewards that differ within a group."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def half_dead(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: object) -> list[float]:
    """The same, where the prompt begins with an even number; else all are equal."""
    return [
        float(int(prompt.split()[0]) % 2 or sum(ids) % 7 / 7)
        for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]


def lora(rank: int = 16) -> Any:
    """Adapters on all linear layers."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")


def python(code: str) -> list[str]:
    """A command that runs Python code on the device of this check."""
    import torch

    loaded = "from benchmarks.gpu import stand_in; stand_in.load(); " if getattr(torch, "_stand_in", False) else ""
    return [sys.executable, "-c", loaded + code]


def release() -> None:
    """Give back the memory of what was just deleted."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

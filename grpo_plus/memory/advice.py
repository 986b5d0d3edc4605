"""Advice of the memory planner before loading and after an out-of-memory error."""

from typing import Any

from grpo_plus.memory.estimate import GIB, Settings, estimate
from grpo_plus.memory.fit import fit
from grpo_plus.memory.shape import shape_of

LOWER = "Lower max_completion_length or per_device_train_batch_size"
"""Advice for a pass that is too large."""
PLAN = "grpo-plus check config.yaml --vram GIB prints settings that fit a card"
"""Further advice for a run with adapters."""
STATES = "Set optim: paged_adamw_8bit (a quarter of AdamW's state), or use_peft: true (adapters alone have gradients)"
"""Advice for memory that does not depend on the batch size."""


def settings_of(
    args: Any,
    peft_config: Any,
    *,
    bits: int | None,
    double: bool = True,
    lean: bool = False,
    most_rows: int | None = None,
) -> Settings:
    """Return the planner's settings of a training config; ``bits`` is 4 or 8 for a bitsandbytes base.

    The data is not loaded yet, so prompts count as 256 tokens. Sampling on a vLLM server takes no memory here.
    ``double``: the scales of a 4-bit base are quantised too. ``lean``: ``rollout: auto`` with ``most_rows`` at once.
    """
    rows = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    rows = min(rows, most_rows or rows)
    if args.use_vllm and args.vllm_mode == "server":
        rows = 0
    return Settings(
        micro_batch=args.per_device_train_batch_size,
        rollout_rows=rows,
        completion_length=args.max_completion_length,
        prompts=-(-rows // args.num_generations) if lean else rows,
        rank=getattr(peft_config, "r", None) or 16,
        targets=getattr(peft_config, "target_modules", None),
        checkpointing=bool(args.gradient_checkpointing),
        optimizer=optimizer_of(args),
        four_bit=bits == 4,
        eight_bit=bits == 8,
        double_quantisation=double,
        width=2 if args.bf16 or args.fp16 else 4,
    )


def shortage(config: Any, name: str, settings: Settings, capacity: float, generations: int) -> str | None:
    """Return a warning if a run will not fit in ``capacity`` bytes, or None.

    ``generations`` is the number of completions of a prompt.
    """
    shape = shape_of(config, name)
    memory = estimate(shape, settings)
    if memory.weights > capacity:
        fit(shape, settings, capacity, generations=generations)  # raises
    peak = memory.peak
    if peak <= capacity:
        return None
    need = f"the run is estimated to need {peak / GIB:.1f} GiB, the card has {capacity / GIB:.1f} GiB"
    return f"{need}. {LOWER}; {PLAN}."


def optimizer_of(args: Any) -> str:
    """Return TRL's name of the optimizer."""
    return str(getattr(args.optim, "value", args.optim))


def capacity_of(device: Any) -> float | None:
    """Return the memory of a CUDA device in bytes; None for other devices."""
    import torch

    if getattr(device, "type", None) != "cuda":
        return None
    return float(torch.cuda.get_device_properties(device).total_memory)

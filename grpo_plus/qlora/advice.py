"""The planner's word to a run that is about to load, or that has run out of memory."""

from typing import Any

from grpo_plus.qlora.fit import DoesNotFitError, fit
from grpo_plus.qlora.memory import GIB, Settings, estimate
from grpo_plus.qlora.shape import shape_of


def settings_of(args: Any, peft_config: Any, *, four_bit: bool) -> Settings:
    """The planner's settings of a training config.

    The prompt's length is not known before the data is: a quarter of a thousand tokens stand for it.
    """
    rows = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    rows = min(rows, getattr(args, "rollout_rows", None) or rows)
    lean = getattr(args, "rollout", "stock") == "auto"
    return Settings(
        micro_batch=args.per_device_train_batch_size,
        rollout_rows=rows,
        completion_length=args.max_completion_length,
        prompts=max(1, rows // args.num_generations) if lean else rows,
        rank=getattr(peft_config, "r", None) or 16,
        targets=getattr(peft_config, "target_modules", None),
        checkpointing=bool(args.gradient_checkpointing),
        optimizer=str(getattr(args.optim, "value", args.optim)),
        four_bit=four_bit,
        width=2 if args.bf16 or args.fp16 else 4,
    )


def shortage(config: Any, name: str, settings: Settings, capacity: float, generations: int) -> str | None:
    """What to say before loading when a run will not fit in ``capacity`` bytes; None when it will.

    Args:
        config: of the model.
        name: of the model.
        settings: of the run.
        capacity: of the card.
        generations: completions of a prompt.

    Raises:
        DoesNotFitError: the weights alone are too much.
    """
    shape = shape_of(config, name)
    found = estimate(shape, settings)
    if found.weights > capacity:
        fit(shape, settings, capacity, generations=generations)
    peak = found.peak
    if peak <= capacity:
        return None
    need = f"the run is estimated to need {peak / GIB:.1f} GiB, the card has {capacity / GIB:.1f} GiB. "
    return need + suggestion(config, name, settings, capacity, generations)


def suggestion(config: Any, name: str, settings: Settings, capacity: float | None, generations: int) -> str:
    """Settings that fit, in one sentence; where the card is unknown, where to ask.

    Args:
        config: of the model.
        name: of the model.
        settings: of the run.
        capacity: of the card, or None.
        generations: completions of a prompt.
    """
    if capacity is None:
        return (
            f"Lower max_completion_length or per_device_train_batch_size; grpo-plus plan --model {name} --vram GIB "
            "prints settings that fit a card."
        )
    try:
        found = fit(shape_of(config, name), settings, capacity, generations=generations)
    except DoesNotFitError as error:
        return str(error)
    chosen = found.settings
    return (
        f"By the planner these fit: per_device_train_batch_size: {chosen.micro_batch}, max_completion_length: "
        f"{chosen.completion_length}, rollout_rows: {chosen.rollout_rows}, lora_r: {chosen.rank}, "
        f"gradient_checkpointing: {str(chosen.checkpointing).lower()} (grpo-plus plan --model {name} --vram "
        f"{capacity / GIB:.0f} prints them as YAML)."
    )


def capacity_of(device: Any) -> float | None:
    """Memory of a CUDA card in bytes; None for anything else."""
    import torch

    if getattr(device, "type", None) != "cuda":
        return None
    return float(torch.cuda.get_device_properties(device).total_memory)

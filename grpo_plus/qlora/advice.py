"""The planner's word to a run that is about to load, or that has run out of memory."""

from typing import Any

from grpo_plus.qlora.fit import DoesNotFitError, fit
from grpo_plus.qlora.memory import ASSUMED, GIB, Settings, Slack, estimate
from grpo_plus.qlora.shape import shape_of


def settings_of(args: Any, peft_config: Any, *, bits: int | None, double: bool = True) -> Settings:
    """The planner's settings of a training config.

    The prompt's length is not known before the data is: a quarter of a thousand tokens stand for it. What a vLLM server
    draws takes no memory here.

    Args:
        args: the training config.
        peft_config: of the adapters.
        bits: 4 or 8 if bitsandbytes holds the base.
        double: whether the scales of a 4-bit base are quantised too.
    """
    rows = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    rows = min(rows, getattr(args, "rollout_rows", None) or rows)
    if args.use_vllm and args.vllm_mode == "server":
        rows = 0
    lean = getattr(args, "rollout", "stock") == "auto"
    return Settings(
        micro_batch=args.per_device_train_batch_size,
        rollout_rows=rows,
        completion_length=args.max_completion_length,
        prompts=-(-rows // args.num_generations) if lean else rows,
        rank=getattr(peft_config, "r", None) or 16,
        targets=getattr(peft_config, "target_modules", None),
        checkpointing=bool(args.gradient_checkpointing),
        optimizer=str(getattr(args.optim, "value", args.optim)),
        four_bit=bits == 4,
        eight_bit=bits == 8,
        double_quantisation=double,
        width=2 if args.bf16 or args.fp16 else 4,
    )


def shortage(
    config: Any, name: str, settings: Settings, capacity: float, generations: int, *, slack: Slack = ASSUMED
) -> str | None:
    """What to say before loading when a run will not fit in ``capacity`` bytes; None when it will.

    Args:
        config: of the model.
        name: of the model.
        settings: of the run.
        capacity: of the card.
        generations: completions of a prompt.
        slack: what comes on top of the parts.

    Raises:
        DoesNotFitError: the weights alone are too much.
    """
    shape = shape_of(config, name)
    found = estimate(shape, settings, slack)
    if found.weights > capacity:
        fit(shape, settings, capacity, generations=generations, slack=slack)
    peak = found.peak
    if peak <= capacity:
        return None
    need = f"the run is estimated to need {peak / GIB:.1f} GiB, the card has {capacity / GIB:.1f} GiB. "
    return need + suggestion(config, name, settings, capacity, generations, slack=slack)


def suggestion(
    config: Any, name: str, settings: Settings, capacity: float | None, generations: int, *, slack: Slack = ASSUMED
) -> str:
    """Settings that fit, in one sentence; where the card is unknown, where to ask.

    Args:
        config: of the model.
        name: of the model.
        settings: of the run.
        capacity: of the card, or None.
        generations: completions of a prompt.
        slack: what comes on top of the parts.
    """
    if capacity is None:
        return (
            f"Lower max_completion_length or per_device_train_batch_size; grpo-plus plan --model {name} --vram GIB "
            "prints settings that fit a card."
        )
    try:
        found = fit(shape_of(config, name), settings, capacity, generations=generations, slack=slack)
    except DoesNotFitError as error:
        return str(error)
    chosen = found.settings
    drawn = f"rollout: auto, rollout_rows: {chosen.rollout_rows}, " if settings.rollout_rows else ""
    return (
        f"By the planner these fit: per_device_train_batch_size: {chosen.micro_batch}, max_completion_length: "
        f"{chosen.completion_length}, {drawn}lora_r: {chosen.rank}, "
        f"gradient_checkpointing: {str(chosen.checkpointing).lower()} (grpo-plus plan --model {name} --vram "
        f"{capacity / GIB:.0f} prints them as YAML)."
    )


def capacity_of(device: Any) -> float | None:
    """Memory of a CUDA card in bytes; None for anything else."""
    import torch

    if getattr(device, "type", None) != "cuda":
        return None
    return float(torch.cuda.get_device_properties(device).total_memory)

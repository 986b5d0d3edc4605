"""The planner's word to a run that is about to load, or that has run out of memory."""

from collections.abc import Sequence
from typing import Any

from grpo_plus.memory.estimate import GIB, OPTIMIZER_BYTES, HeadSettings, Settings, estimate
from grpo_plus.memory.fit import DoesNotFitError, fit
from grpo_plus.memory.shape import shape_of

LOWER = "Lower max_completion_length or per_device_train_batch_size"
"""What helps wherever a pass is too large."""


def settings_of(
    args: Any,
    peft_config: Any,
    *,
    bits: int | None,
    double: bool = True,
    lean: bool = False,
    most_rows: int | None = None,
    heads: Sequence[HeadSettings] = (),
) -> Settings:
    """The planner's settings of a training config; ``bits`` is 4 or 8 if bitsandbytes holds the base.

    The prompt's length is not known before the data is: a quarter of a thousand tokens stand for it. What a vLLM server
    draws takes no memory here. ``double`` means that the scales of a 4-bit base are quantised too, ``lean`` that
    completions are drawn by ``rollout: auto``, ``most_rows`` at once. ``heads`` stand beside the policy.
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
        heads=tuple(heads),
    )


def shortage(config: Any, name: str, settings: Settings, capacity: float, generations: int) -> str | None:
    """What to say before loading when a run will not fit in ``capacity`` bytes; None when it will.

    ``generations`` are completions of a prompt.
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
    """Settings that fit, in one sentence; where the card, and so its capacity, is unknown, where to ask."""
    if capacity is None:
        return f"{LOWER}; grpo-plus plan config.yaml --vram GIB prints settings that fit a card."
    try:
        found = fit(shape_of(config, name), settings, capacity, generations=generations)
    except DoesNotFitError as error:
        return str(error)
    chosen = found.settings
    drawn = f"rollout: {{how: auto, rows: {chosen.rollout_rows}}}, " if settings.rollout_rows else ""
    return (
        f"By the planner these fit: per_device_train_batch_size: {chosen.micro_batch}, max_completion_length: "
        f"{chosen.completion_length}, {drawn}lora_r: {chosen.rank}, "
        f"gradient_checkpointing: {str(chosen.checkpointing).lower()} (grpo-plus plan config.yaml --vram "
        f"{capacity / GIB:.0f} prints them as YAML)."
    )


def resident(model: Any, optimizer: str) -> str:
    """What a model that is trained without adapters takes however small its batches are, in a sentence."""
    weights = sum(parameter.nbytes for parameter in model.parameters())
    trained, state = _trained(model, optimizer)
    return (
        f"Whatever the batch, the weights take {_size(weights)}, their gradients {_size(trained)}, the optimizer's "
        f"state about {_size(state)} ({optimizer}); with use_peft: true only adapters have the last two."
    )


def optimizer_suggestion(model: Any, optimizer: str) -> str:
    """What makes the step of an optimizer, by TRL's name of it, smaller, in two sentences."""
    trained, state = _trained(model, optimizer)
    adapters = "" if any("lora_" in name for name, _ in model.named_parameters()) else ", or use_peft: true"
    return (
        f"The state of {optimizer} is made in its first step and takes about {_size(state)} beside {_size(trained)} of "
        f"gradients, whatever the batch. Set optim: paged_adamw_8bit (a quarter of AdamW's state){adapters}."
    )


def optimizer_of(args: Any) -> str:
    """TRL's name of the optimizer."""
    return str(getattr(args.optim, "value", args.optim))


def _trained(model: Any, optimizer: str) -> tuple[int, float]:
    """Bytes of the gradients, and about those of the optimizer's state: Adam's two moments unless it is known."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = sum(parameter.nbytes for parameter in trained)
    known = OPTIMIZER_BYTES.get(optimizer)
    return gradients, 2 * gradients if known is None else known * sum(parameter.numel() for parameter in trained)


def _size(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB" if amount >= 0.1 * GIB else f"{amount / 2**20:.1f} MiB"


def capacity_of(device: Any) -> float | None:
    """Memory of a CUDA card in bytes; None for anything else."""
    import torch

    if getattr(device, "type", None) != "cuda":
        return None
    return float(torch.cuda.get_device_properties(device).total_memory)

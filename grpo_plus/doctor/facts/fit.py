"""Sizes of a run from the model's config and the run's settings."""

import math
from pathlib import Path
from typing import Any

from grpo_plus.checkpoints.disk import free_bytes, size_text
from grpo_plus.doctor.checks.fit import Fit
from grpo_plus.memory.advice import optimizer_of, settings_of, shortage
from grpo_plus.memory.estimate import OPTIMIZER_BYTES
from grpo_plus.memory.fit import DoesNotFitError
from grpo_plus.memory.shape import ModelShape, shape_of

FLOAT = 4


def fit_facts(
    args: Any,
    config: Any,
    name: str,
    adapter: Any,
    *,
    width: float,
    memory: int,
    capacity: float | None = None,
    bits: int | None = None,
    lean: bool = False,
    sharded: bool = False,
) -> Fit:
    """Measure the model on the meta device, and ask the planner about a card of ``capacity`` bytes.

    ``adapter`` is the config of PEFT, or None; ``width`` are bytes of a saved weight, and ``memory`` is the machine's.
    ``sharded``: several processes may share the weights out, so that one card need not hold them.
    """
    try:
        shape = shape_of(config, name)
    except ValueError as error:
        return Fit(unknown=str(error))
    weights = shape.linear_weights + shape.other_weights
    trained = _trained(shape, adapter, weights)
    state = OPTIMIZER_BYTES.get(optimizer_of(args), 8.0)
    told = None
    if capacity is not None and adapter is not None:
        settings = settings_of(args, adapter, bits=bits, lean=lean)
        try:
            told = shortage(config, name, settings, capacity, args.num_generations) or ""
        except DoesNotFitError as error:
            told = str(error)
    resident = weights * width + trained * (FLOAT + state)
    if capacity is not None and adapter is None and not sharded and resident > capacity:
        told = (
            f"weights, gradients and the state of {optimizer_of(args)} take about {size_text(resident)}, the card has "
            f"{size_text(capacity)}: set use_peft: true, or a smaller model"
        )
    saves = str(getattr(args.save_strategy, "value", args.save_strategy)) != "no"
    model = trained * FLOAT if adapter is not None else weights * width
    extra = 0 if args.save_only_model else trained * state
    return Fit(
        weights=weights,
        resident=resident,
        memory=memory,
        card=capacity is not None,
        shortage=told,
        model=model,
        checkpoint=(model + extra) if saves else 0,
        checkpoints=_count(args) if saves else None,
        free=free_bytes(Path(args.output_dir).absolute()),
    )


def _trained(shape: ModelShape, adapter: Any, weights: int) -> int:
    if adapter is None:
        return weights
    targets = getattr(adapter, "target_modules", None)
    targets = sorted(targets) if isinstance(targets, set) else targets
    return shape.lora_weights(getattr(adapter, "r", None) or 16, targets)


def _count(args: Any) -> int | None:
    """The largest number of checkpoints side by side, where the number of steps is known."""
    if str(getattr(args.save_strategy, "value", args.save_strategy)) != "steps" or args.max_steps < 1:
        return None
    every = args.save_steps if args.save_steps >= 1 else max(1, math.floor(args.save_steps * args.max_steps))
    count = int(args.max_steps // every)
    return min(count, args.save_total_limit + 1) if args.save_total_limit else count

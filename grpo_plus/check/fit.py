"""Size of a run against the GPU (by the planner), the memory and the disk for checkpoints."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_plus.check.finding import CheckFinding, info, ok, problem, warning
from grpo_plus.checkpoints.disk import free_bytes
from grpo_plus.memory.advice import optimizer_of, shortage
from grpo_plus.memory.estimate import OPTIMIZER_BYTES
from grpo_plus.memory.fit import DoesNotFitError
from grpo_plus.memory.shape import ModelShape, shape_of
from grpo_verifiers.errors.messages import size_text

FLOAT = 4

FITS = ok("memory-fits", "The planner's estimate of the run fits the card.")
SHORT = problem(
    "memory-short",
    "By the planner's estimate the run needs more memory than the card has.",
    "Lower the batch or the length, or run grpo-plus check with --vram for settings that fit.",
)
NO_ROOM = problem(
    "memory-short-cpu",
    "The weights, their gradients and the optimizer's state do not fit into this machine's memory: loading or the "
    "first step ends the process without a message.",
    "Take a smaller model, adapters (use_peft: true), or another machine.",
)
UNKNOWN = info("size-unknown", "The model's size cannot be computed from its config, so nothing was estimated.")
DISK_FITS = ok("checkpoints-fit", "Checkpoints and the model fit on the disk of output_dir.")
DISK_SHORT = problem(
    "disk-short",
    "The disk of output_dir has no room for one checkpoint and the model: the first save would fail.",
    "Free some space, set another output_dir, or save less (save_only_model: true, use_peft: true).",
)
DISK_LATER = warning(
    "disk-short-later",
    "One checkpoint fits, all that are planned do not: the disk is full before the end.",
    "Set save_total_limit: 2, or a larger save_steps.",
)


def fit_findings(
    args: Any,
    config: Any,
    name: str,
    adapter: Any,
    *,
    width: float,
    memory: int | None,
    capacity: float | None = None,
    bits: int | None = None,
    double: bool,
    sharded: bool = False,
) -> Iterator[CheckFinding]:
    """Measure the model on the meta device, run the planner for a card of ``capacity`` bytes, then check the disk.

    ``adapter`` is the config of PEFT, or None; ``width`` are bytes of a saved weight; ``memory`` is the machine's, or
    None for another one. ``sharded``: several processes may share the weights, so one card need not contain all.
    """
    try:
        shape = shape_of(config, name)
    except ValueError as error:
        yield UNKNOWN.at("model", str(error))
        return
    weights = shape.linear_weights + shape.other_weights
    trained = _trained(shape, adapter, weights)
    state = OPTIMIZER_BYTES.get(optimizer_of(args), 8.0)
    resident = weights * width + trained * (FLOAT + state)
    need = f"weights, gradients and the state of {optimizer_of(args)} take about {size_text(resident)}"
    if capacity is None and memory is not None and resident > memory:
        size = f"{weights / 1e9:.2g} billion weights: about {size_text(resident)}, the machine has {size_text(memory)}"
        yield NO_ROOM.at("memory", size)
    elif capacity is not None and adapter is not None:
        from grpo_plus.training.update import planned

        settings = planned(args, adapter, bits=bits, double=double)
        try:
            short = shortage(config, name, settings, capacity, args.num_generations)
        except DoesNotFitError as error:
            short = str(error)
        yield SHORT.at("memory", short) if short else FITS.at("memory", "by the planner's estimate")
    elif capacity is not None and not sharded and resident > capacity:
        way = "set use_peft: true, or a smaller model"
        yield SHORT.at("memory", f"{need}, the card has {size_text(capacity)}: {way}")
    model = trained * FLOAT if adapter is not None else weights * width
    yield _disk(args, model, 0 if args.save_only_model else trained * state)


def _disk(args: Any, model: float, extra: float) -> CheckFinding:
    saves = str(getattr(args.save_strategy, "value", args.save_strategy)) != "no"
    checkpoint, count = (model + extra, _count(args)) if saves else (0.0, None)
    free = free_bytes(Path(args.output_dir).absolute())
    sizes = f"{size_text(free)} free; the model takes about {size_text(model)}"
    if checkpoint:
        sizes += f", a checkpoint {size_text(checkpoint)}"
    if model + checkpoint > free:
        return DISK_SHORT.at("output_dir", sizes)
    if count is not None and model + count * checkpoint > free:
        return DISK_LATER.at("output_dir", f"{sizes}, {count} of them are planned")
    return DISK_FITS.at("output_dir", sizes)


def _trained(shape: ModelShape, adapter: Any, weights: int) -> int:
    if adapter is None:
        return weights
    targets = getattr(adapter, "target_modules", None)
    targets = sorted(targets) if isinstance(targets, set) else targets
    return shape.lora_weights(getattr(adapter, "r", None) or 16, targets)


def _count(args: Any) -> int | None:
    """Return the largest number of simultaneous checkpoints; None if the number of steps is unknown."""
    if str(getattr(args.save_strategy, "value", args.save_strategy)) != "steps" or args.max_steps < 1:
        return None
    every = args.save_steps if args.save_steps >= 1 else max(1, math.floor(args.save_steps * args.max_steps))
    count = int(args.max_steps // every)
    return min(count, args.save_total_limit + 1) if args.save_total_limit else count

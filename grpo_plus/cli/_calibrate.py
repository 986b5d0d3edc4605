"""``plan --calibrate``: measure the memory that a card needs beyond the planner's parts, and store it."""

import argparse
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_verifiers.lazy import installed

if TYPE_CHECKING:
    from grpo_plus.memory.calibration import Calibration
    from grpo_plus.memory.estimate import Settings
    from grpo_plus.memory.shape import ModelShape


def calibrate_here(options: argparse.Namespace, asked: "Settings", config: Any, shape: "ModelShape") -> "Calibration":
    """Measure on the current card, and store the result."""
    import torch

    from grpo_plus.cli._memory_probe import CudaMeter
    from grpo_plus.memory.estimate import GIB

    if not torch.cuda.is_available():
        raise UserError(
            "--calibrate measures on a CUDA card, and this PyTorch sees none (torch.cuda.is_available() is False). Run "
            "it on the machine that will train, with a CUDA build of torch and with bitsandbytes; leave --calibrate "
            "out for the estimate."
        )
    if not options.no_4bit and not installed("bitsandbytes"):
        raise UserError("--calibrate needs bitsandbytes, which is not installed: pip install 'bitsandbytes>=0.49'.")
    device = torch.device("cuda", torch.cuda.current_device())
    meter = CudaMeter(device)
    capacity = float(torch.cuda.get_device_properties(device).total_memory)
    if options.vram is not None:
        capacity = min(capacity, options.vram * GIB)
    return calibrate(
        asked, config, shape, generations=options.num_generations, capacity=capacity,
        device=device, card=torch.cuda.get_device_name(device), meter=meter,
    )  # fmt: skip


def calibrate(
    asked: "Settings",
    config: Any,
    shape: "ModelShape",
    *,
    generations: int,
    capacity: float,
    device: Any,
    card: str,
    meter: Any,
) -> "Calibration":
    """Measure the settings that fit the card, store the correction, and print the measurements.

    ``asked.rollout_rows`` is the generation batch, ``generations`` the completions of a prompt. ``capacity`` is in
    bytes.
    """
    from grpo_plus.cli._memory_probe import measure
    from grpo_plus.memory.calibration import Calibration, CalibrationError, corrected, store, versions
    from grpo_plus.memory.estimate import GIB
    from grpo_plus.memory.fit import DoesNotFitError, fit

    try:
        meant = fit(shape, asked, capacity, generations=generations).settings
        print(f"Measuring on {card} with random weights of the shape of {shape.name}:")
        points = measure(config, meant, batch=asked.rollout_rows, generations=generations, device=device, meter=meter)
        outside = meter.outside()
        slack = corrected(points, outside)
    except (CalibrationError, DoesNotFitError) as error:
        raise UserError(f"--calibrate: {error}") from error
    print(f"  {'phase':<8} {'layers':>6} {'parts':>10} {'reserved':>10} {'in use':>10}   GiB")
    for point in points:
        sizes = (point.planned, point.reserved, point.allocated)
        print(f"  {point.phase:<8} {point.layers:>6}" + "".join(f" {size / GIB:>10.3f}" for size in sizes))
    found = Calibration(card, *versions(), model=shape.name, slack=slack)
    print(f"  CUDA beside PyTorch: {outside / GIB:.3f} GiB")
    try:
        print(f"Kept in {store(found)} for {found.key}.\n")
    except OSError as error:  # the measurement took minutes and still serves this table
        print(f"Not kept, so used for this table only: {error}. Set XDG_CACHE_HOME to a folder that can be written.\n")
    return found

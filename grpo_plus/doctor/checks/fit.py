"""Whether a run fits: into the card by the planner, into memory, and its checkpoints onto the disk."""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_plus.checkpoints.disk import size_text
from grpo_plus.doctor.finding import Finding, info, ok, problem, warning

SMALL = 300_000_000
"""Weights that a processor trains in reasonable time."""

FITS = ok("memory-fits", "The planner's estimate of the run fits the card.")
SHORT = problem(
    "memory-short",
    "By the planner's estimate the run needs more memory than the card has.",
    "Take the settings that are named, or ask grpo-plus plan for others.",
)
NO_ROOM = problem(
    "memory-short-cpu",
    "The weights, their gradients and the optimizer's state do not fit into this machine's memory: loading or the "
    "first step ends the process without a word.",
    "Take a smaller model, adapters (use_peft: true), or another machine.",
)
SLOW = warning(
    "large-on-cpu",
    "A model of this size trains on a processor, an hour or more a step; nothing says so before it is downloaded.",
    "Run on a machine with a card, or take a small model to try the config.",
)
UNKNOWN = info("size-unknown", "The model's size cannot be told from its config, so nothing was estimated.")
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


@dataclass(frozen=True)
class Fit:
    """Sizes of a run, in bytes.

    Attributes:
        weights: numbers in the model.
        resident: weights, gradients and state of the optimizer, on a processor.
        memory: of this machine.
        card: there is an accelerator.
        shortage: what the planner says about a run that does not fit; empty where it does; None where it was not asked.
        model: of the saved model, or its adapters.
        checkpoint: of one checkpoint; 0 where none is saved.
        checkpoints: how many lie side by side at most; None where it cannot be told.
        free: on the disk of output_dir.
        unknown: why the sizes cannot be told; empty where they can.
    """

    weights: int = 0
    resident: float = 0
    memory: int = 0
    card: bool = False
    shortage: str | None = None
    model: float = 0
    checkpoint: float = 0
    checkpoints: int | None = None
    free: int = 0
    unknown: str = ""


def fit_findings(facts: Fit) -> Iterator[Finding]:
    """Memory, then disk."""
    if facts.unknown:
        yield UNKNOWN.at("model", facts.unknown)
        return
    if facts.shortage is not None:
        yield SHORT.at("memory", facts.shortage) if facts.shortage else FITS.at("memory", "by the planner's estimate")
    if not facts.card:
        told = f"{facts.weights / 1e9:.2g} billion weights"
        if facts.resident > facts.memory:
            need = f"about {size_text(facts.resident)}, the machine has {size_text(facts.memory)}"
            yield NO_ROOM.at("memory", f"{told}: {need}")
        elif facts.weights > SMALL:
            yield SLOW.at("model", f"{told}, no accelerator")
    told = f"{size_text(facts.free)} free; the model takes about {size_text(facts.model)}"
    if facts.checkpoint:
        told += f", a checkpoint {size_text(facts.checkpoint)}"
    if facts.model + facts.checkpoint > facts.free:
        yield DISK_SHORT.at("output_dir", told)
    elif facts.checkpoints is not None and facts.model + facts.checkpoints * facts.checkpoint > facts.free:
        yield DISK_LATER.at("output_dir", f"{told}, {facts.checkpoints} of them are planned")
    else:
        yield DISK_FITS.at("output_dir", told)

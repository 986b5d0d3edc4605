"""What a card was measured to need on top of the planner's parts: fitted, stored, and found again.

The parts of the formula are arithmetic; what the allocator and CUDA add is not. Two depths of the same model separate
what grows with the parts (a factor) from what does not (a constant), for the update and for the rollout.
"""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_plus.memory.estimate import ASSUMED, GIB, Line, Slack
from grpo_verifiers.files import read_text, write_whole
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

BELIEVED = (0.5, 3.0)
"""Factors outside of this say that something else was measured than what the formula describes."""


class CalibrationError(ValueError):
    """The measurements give no correction; the message says why."""


@dataclass(frozen=True)
class Point:
    """One phase at one depth.

    Attributes:
        phase: ``train`` or ``rollout``.
        layers: of the model that ran.
        planned: the sum of the formula's parts, in bytes.
        reserved: the most that PyTorch held, in bytes.
        allocated: the most of it that was in use.
    """

    phase: str
    layers: int
    planned: float
    reserved: float
    allocated: float


@dataclass(frozen=True)
class Calibration:
    """What was measured, and what follows from it.

    Attributes:
        card: name of the card.
        torch: its version then.
        bitsandbytes: its version then.
        model: whose shape was measured.
        slack: the correction.
    """

    card: str
    torch: str
    bitsandbytes: str
    model: str
    slack: Slack

    @property
    def key(self) -> str:
        """What it is stored under."""
        return key_of(self.card, self.torch, self.bitsandbytes)


def key_of(card: str, torch: str, bitsandbytes: str) -> str:
    """What a measurement holds for: another card, or another version, needs another one."""
    return f"{card}, torch {torch}, bitsandbytes {bitsandbytes}"


def versions() -> tuple[str, str]:
    """The installed torch and bitsandbytes; ``none`` for what is not there."""
    found = []
    for name in ("torch", "bitsandbytes"):
        try:
            found.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            found.append("none")
    return found[0], found[1]


def corrected(points: Sequence[Point], outside: float) -> Slack:
    """The line through the measurements of each phase.

    A constant below zero is not believed, since other models are smaller: then the line goes through zero, above every
    measurement.

    Args:
        points: of two depths or more.
        outside: what CUDA holds beside PyTorch, in bytes.

    Raises:
        CalibrationError: a phase was not measured at two depths, or the factor is absurd.
    """
    lines = {}
    for phase in ("train", "rollout"):
        pairs = [(point.planned, point.reserved) for point in points if point.phase == phase]
        if len({planned for planned, _ in pairs}) < 2:
            raise CalibrationError(f"the {phase} phase was measured at {len(pairs)} depths; a line needs two.")
        middle = sum(planned for planned, _ in pairs) / len(pairs)
        level = sum(reserved for _, reserved in pairs) / len(pairs)
        factor = sum((planned - middle) * (reserved - level) for planned, reserved in pairs) / sum(
            (planned - middle) ** 2 for planned, _ in pairs
        )
        constant = level - factor * middle
        if constant < 0:
            factor, constant = max(reserved / planned for planned, reserved in pairs), 0.0
        if not BELIEVED[0] <= factor <= BELIEVED[1]:
            raise CalibrationError(
                f"in the {phase} phase memory grew {factor:.2f} times as fast as planned (expected {BELIEVED[0]} to "
                f"{BELIEVED[1]}): something else held memory, or the runs were too small to measure. Close other "
                "programs on the card, or calibrate with longer completions."
            )
        lines[phase] = Line(factor, constant + outside)
    return Slack(**lines)


def cache_file() -> Path:
    """Where measurements are kept."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return folder / "grpo_plus" / "calibration.json"


def store(found: Calibration) -> Path:
    """Keep a measurement beside those of other cards and versions; a file that cannot be read is replaced."""
    path = cache_file()
    entries = {**(_entries(path) or {}), found.key: asdict(found)}
    write_whole(path, json.dumps({"measurements": entries}, indent=2, sort_keys=True))
    return path


def stored_for(card: str) -> Calibration | None:
    """The measurement for a card with the installed versions; says so where there is one for others only."""
    path = cache_file()
    entries = _entries(path) or {}
    key = key_of(card, *versions())
    if key not in entries:
        others = [other for other in entries if other.startswith(f"{card}, ")]
        if others:
            logger.warning(
                "The planner's correction for this card was measured with other versions (%s), and is not used; "
                "grpo-plus plan --model MODEL --calibrate measures anew.",
                "; ".join(others),
            )
        return None
    try:
        return _read(entries[key])
    except (KeyError, TypeError, ValueError) as error:
        _say_broken(path, f"{key}: {error!r}")
        return None


def slack_of(device: Any) -> Slack:
    """What is known about a device: measured, if it was; assumed otherwise."""
    import torch

    if getattr(device, "type", None) != "cuda" or not torch.cuda.is_available():
        return ASSUMED
    found = stored_for(torch.cuda.get_device_name(device))
    return ASSUMED if found is None else found.slack


def _read(entry: Any) -> Calibration:
    lines = {}
    for phase in ("train", "rollout"):
        line = Line(**{name: float(entry["slack"][phase][name]) for name in ("factor", "constant")})
        if not BELIEVED[0] <= line.factor <= BELIEVED[1] or not 0 <= line.constant <= 64 * GIB:
            raise ValueError(f"{phase} is {line}")
        lines[phase] = line
    names = {name: str(entry[name]) for name in ("card", "torch", "bitsandbytes", "model")}
    return Calibration(**names, slack=Slack(**lines))


def _entries(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(read_text(path))["measurements"]
        if not isinstance(found, dict):
            raise TypeError(f"measurements is {found!r}")  # noqa: TRY301 - one word about all that can be wrong
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _say_broken(path, repr(error))
        return None
    return found


def _say_broken(path: Path, why: str) -> None:
    logger.warning(
        "The planner's measurements in %s cannot be read (%s) and are not used; delete the file, or measure anew with "
        "grpo-plus plan --model MODEL --calibrate.",
        path,
        why,
    )

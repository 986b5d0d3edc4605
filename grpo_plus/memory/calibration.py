"""The memory that a card was measured to need beyond the planner's parts: fit, store and load the measurement.

The parts of the formula are arithmetic; the shares of the allocator and of CUDA are measured. Two depths of the same
model separate a factor of the parts from a constant, for the update and for the rollout.
"""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

from grpo_plus.memory.estimate import ASSUMED, GIB, Line, Slack
from grpo_verifiers.files import read_text, write_whole
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

BELIEVED = (0.5, 3.0)
"""Plausible factors; outside of them something else than the formula's parts was measured."""


class CalibrationError(ValueError):
    """Measurements without a usable correction; the message says why."""


@dataclass(frozen=True)
class Point:
    """One phase, ``train`` or ``rollout``, at one depth in layers.

    Planned is the sum of the formula's parts; reserved and allocated are PyTorch's peaks. All are in bytes.
    """

    phase: str
    layers: int
    planned: float
    reserved: float
    allocated: float


@dataclass(frozen=True)
class Calibration:
    """A measurement of a card with one model, the versions it was made with, and its correction."""

    card: str
    torch: str
    bitsandbytes: str
    model: str
    slack: Slack

    @property
    def key(self) -> str:
        """The key in the file."""
        return key_of(self.card, self.torch, self.bitsandbytes)


def key_of(card: str, torch: str, bitsandbytes: str) -> str:
    """The validity of a measurement: another card or version needs its own."""
    return f"{card}, torch {torch}, bitsandbytes {bitsandbytes}"


def versions() -> tuple[str, str]:
    """The versions of torch and bitsandbytes; ``none`` for a missing package."""
    found = []
    for name in ("torch", "bitsandbytes"):
        try:
            found.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            found.append("none")
    return found[0], found[1]


def corrected(points: Sequence[Point], outside: float) -> Slack:
    """The line through the measurements of each phase, at two depths or more.

    A constant below zero would be wrong for smaller models: then the line goes through zero, above every measurement.
    ``outside`` is the memory of CUDA outside PyTorch, in bytes.

    Raises:
        CalibrationError: a phase was not measured at two depths, or the factor is absurd.
    """
    lines = {}
    for phase in ("train", "rollout"):
        pairs = [(point.planned, point.reserved) for point in points if point.phase == phase]
        if len({planned for planned, _ in pairs}) < 2:
            raise CalibrationError(f"the {phase} phase was measured at {len(pairs)} depths; a line needs two.")
        factor, constant = linear_regression(*zip(*pairs, strict=True))
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
    """The file of the measurements."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return folder / "grpo_plus" / "calibration.json"


def store(found: Calibration) -> Path:
    """Store a measurement beside those of other cards and versions; an unreadable file is replaced."""
    path = cache_file()
    entries = {**(_entries(path) or {}), found.key: asdict(found)}
    write_whole(path, json.dumps({"measurements": entries}, indent=2, sort_keys=True))
    return path


def stored_for(card: str) -> Calibration | None:
    """The measurement for a card with the installed versions; warns if there is one for other versions only."""
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
    """The correction for a device: the measured one, or the assumed one."""
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

"""The accuracy on held-out rows before and after training, as ``measure`` of a config left it beside the record."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo_verifiers.files import read_text

FOLDER = "measure"
"""Below a run's folder; ``before.json`` and ``after.json`` are in it."""


class Share(NamedTuple):
    """A value with the ends of its 95% confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """One verifier's shares of right samples; None for what was not measured. ``gain`` is paired over the rows."""

    before: Share | None = None
    after: Share | None = None
    gain: Share | None = None
    rows: int | None = None


def read_measured(folder: Path) -> dict[str, Measured]:
    """By the verifier's label; whatever cannot be read is left out."""
    found = {when: _results(folder / FOLDER / f"{when}.json") for when in ("before", "after")}
    labels = dict.fromkeys(label for _, results, _ in found.values() for label in results)
    rows = next((count for count, results, _ in reversed(found.values()) if results and count is not None), None)
    return {
        label: Measured(found["before"][1].get(label), found["after"][1].get(label), found["after"][2].get(label), rows)
        for label in labels
    }


def _results(path: Path) -> tuple[int | None, dict[str, Share], dict[str, Share]]:
    """The number of rows, the accuracies, and the gains."""
    try:
        held = json.loads(read_text(path))
        results, rows = held["results"], held["settings"].get("rows")
        accuracies = {str(k): share for k, each in results["verifiers"].items() if (share := _accuracy(each))}
        gains = {str(k): share for k, each in (results.get("gain") or {}).items() if (share := _share(each, -1.0))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, {}, {}
    return rows if isinstance(rows, int) and not isinstance(rows, bool) else None, accuracies, gains


def _accuracy(found: Any) -> Share | None:
    passes = found.get("pass_at") if isinstance(found, Mapping) else None
    return _share(passes.get("1"), 0.0) if isinstance(passes, Mapping) else None


def _share(found: Any, least: float) -> Share | None:
    if not isinstance(found, Mapping):
        return None
    ends = [found.get(name) for name in ("value", "low", "high")]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) and not math.isnan(end) for end in ends):
        return None
    value, low, high = (float(end) for end in ends)  # type: ignore[arg-type]
    return Share(value, max(least, low), min(1.0, high)) if least <= value <= 1 else None

"""What differs first between two runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.resume.watch import digest

ORDER = ("prompts", "completions", "rewards", "micro-batch", "loss", "log")


def difference(expected: Path, found: Path, ranks: int) -> str | None:
    """What differs first between an uninterrupted run and one that was killed and resumed; None: nothing does."""
    for rank in range(ranks):
        told = _events(expected, rank), _events(found, rank)
        ends = [torch.load(folder / f"end_{rank}.pt", weights_only=False) for folder in (expected, found)]
        first = _first_event(*told) or next(
            (name for name in ends[0] if digest(ends[0][name]) != digest(ends[1][name])), None
        )
        if first is not None:
            far = _distance(ends[0]["weights"], ends[1]["weights"])
            return f"{first}; weights {far:.1e}" if far else first
    return None


def _events(folder: Path, rank: int) -> dict[tuple[int, bool, int, int, str], list[Any]]:
    """All that was written down of an event, by step, its end or not, micro-step and kind, in this order."""
    found: dict[tuple[int, bool, int, int, str], list[Any]] = {}
    for line in (folder / f"trace_{rank}.jsonl").read_text().splitlines():
        kind, step, index, value = json.loads(line)
        place = next(at for at, name in enumerate(ORDER) if kind.endswith(name))
        late = kind.endswith("log") or kind.startswith("evaluation")
        found.setdefault((step - late, late, index, place, kind), []).append(value)
    return found


def _first_event(expected: Mapping[Any, list[Any]], found: Mapping[Any, list[Any]]) -> str | None:
    for key in sorted(expected.keys() | found.keys()):
        step, kind = key[0] + 1, key[4]
        if key not in found:
            return f"no {kind} at step {step}"
        if key not in expected:
            return f"additional {kind} at step {step}"
        if wrong := [value for value in found[key] if value != expected[key][-1]]:
            return f"{kind} at step {step}{_names(expected[key][-1], wrong[0])}"
    return None


def _names(one: Any, other: Any) -> str:
    """Which values of a mapping differ."""
    if not isinstance(one, dict):
        return ""
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return f" ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest difference between two sets of weights."""
    apart = [(value.double() - other[name].double()).abs().max().item() for name, value in one.items() if value.numel()]
    return max(apart, default=0.0)

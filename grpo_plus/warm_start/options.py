"""The mapping ``warm_start`` of a config.

warm_start: {dataset: ./solutions.jsonl, solution: solution, epochs: 1}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypedDict

from grpo_plus.recipe.values import checked_mapping
from grpo_verifiers.options import Matches, Range

_Text = Annotated[str, Matches(r"(?s).*\S.*", "a string")]
_Count = Annotated[int, Range(1, text="a whole number of at least 1")]
_Positive = Annotated[float, Range(0, open_low=True, finite=True, text="a number above 0")]
FULL_RATE = 2e-5
ADAPTER_RATE = 2e-4
"""Learning rates where none is set: TRL's for all weights, and ten times that for an adapter."""


class WarmStartSettings(TypedDict, total=False):
    """The keys of ``warm_start``, and the values that each takes."""

    dataset: _Text
    config: _Text
    split: _Text
    solution: _Text
    steps: _Count
    epochs: _Positive
    learning_rate: _Positive
    batch_size: _Count
    max_length: _Count
    seed: Annotated[int, Range(0, text="a whole number of at least 0")]
    full: bool
    verbatim: bool
    folder: _Text


KEYS = tuple(WarmStartSettings.__annotations__)
EXAMPLE = "{dataset: ./solutions.jsonl, solution: solution, epochs: 1}"


def warm_start_problems(settings: Any) -> list[str]:
    """The problems of the mapping."""
    values, problems = checked_mapping("warm_start", settings, WarmStartSettings, EXAMPLE)
    if "steps" in values and "epochs" in values:
        problems.append(
            f"warm_start has both steps ({values['steps']!r}) and epochs ({values['epochs']!r}), which both say how "
            "long it trains: keep one."
        )
    if "config" in values and "dataset" not in values:
        problems.append(
            f"warm_start has config: {values['config']!r}, which names a part of its dataset, and no dataset: add it, "
            "or remove config."
        )
    return problems


@dataclass(frozen=True)
class WarmStart:
    """The settings of a warm start, with defaults.

    Attributes:
        steps: optimizer steps.
        batch_size: solutions of an optimizer step, over all processes.
        learning_rate: its peak; it rises for a tenth of the steps, then falls along a cosine.
        seed: of the order of the solutions, and of a new adapter.
        full: all weights are trained, also where the run trains an adapter.
    """

    steps: int
    batch_size: int
    learning_rate: float
    seed: int = 42
    full: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any], rows: int, *, adapter: bool, processes: int = 1) -> Self:
        """Fill in unset keys, for so many usable rows; ``adapter`` is true if the run trains one."""
        batch_size = settings.get("batch_size", 32)
        batch = max(1, min(batch_size, rows) // processes) * processes
        full = bool(settings.get("full", False))
        rate = ADAPTER_RATE if adapter and not full else FULL_RATE
        return cls(
            steps=settings.get("steps") or max(1, round(settings.get("epochs", 1) * (rows // batch))),
            batch_size=batch,
            learning_rate=float(settings.get("learning_rate", rate)),
            seed=settings.get("seed", 42),
            full=full,
        )

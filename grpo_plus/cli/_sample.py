"""The sample group of ``grpo-plus explain``: rewards, lengths and step scores as a user gives them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError

if TYPE_CHECKING:
    from grpo_plus.advantages import RewardTable

REWARDS = "1,1,1,0"
LENGTH = 10
Step = tuple[float, int, int]


@dataclass(frozen=True)
class Sample:
    """One group: ``columns`` has one list for each reward, with one number a completion.

    ``lengths`` are in tokens. ``steps`` has each completion's (score, first token, one past the last), None where none
    were given, and ``values`` a critic's value before each of its tokens. ``summed`` are names and weights of the
    rewards that the one column is said to be the weighted sum of.
    """

    names: Sequence[str]
    weights: Sequence[float]
    columns: Sequence[Sequence[float]]
    lengths: Sequence[int]
    steps: list[list[Step]] | None = None
    summed: Sequence[tuple[str, float]] = ()
    values: list[list[float]] | None = None

    def table(self) -> "RewardTable":
        """The table that a trainer would make of the group."""
        from grpo_plus.advantages import RewardTable

        rows = list(map(list, zip(*self.columns, strict=True)))
        return RewardTable.of(
            rows, lengths=self.lengths, steps=self.steps, weights=self.weights, names=self.names, values=self.values
        )

    def valued(self) -> "Sample":
        """With the mean reward as the value of every state."""
        totals = self.table().totals()
        known = totals[~totals.isnan()]
        mean = float(known.mean()) if len(known) else 0.0
        return replace(self, values=[[mean] * length for length in self.lengths])


def read_sample(rewards: str, lengths: str | None, steps: str | None, known: Sequence[tuple[str, float]]) -> Sample:
    """The group that the flags describe.

    ``rewards`` is a list of numbers, or one for each reward, separated by semicolons; ``steps`` one for each
    completion. Without ``lengths``, completions have as many tokens as steps need, and at least `LENGTH`. ``known`` is
    name and weight of every reward of the config, in order.
    """
    columns = [_numbers("--rewards", part) for part in rewards.split(";")] if rewards else []
    if not columns:
        raise UserError(f"--rewards is empty, expected numbers separated by commas, like {REWARDS}.")
    if any(math.isinf(value) for column in columns for value in column):
        raise UserError(f"--rewards is {rewards!r}, expected finite numbers (nan: the reward does not apply).")
    count = len(columns[0])
    if any(len(column) != count for column in columns):
        counts = ", ".join(str(len(column)) for column in columns)
        raise UserError(f"--rewards has lists of {counts} numbers: give each reward one number a completion.")
    names, weights, summed = _named(len(columns), known)
    scores = None if steps is None else _steps(steps, count)
    most = max(map(len, scores), default=0) if scores else 0
    sizes = _lengths(lengths, count, max(LENGTH, most))
    spread = None if scores is None else list(map(_spread, scores, sizes))
    return Sample(names, weights, columns, sizes, spread, summed)


Named = tuple[Sequence[str], Sequence[float], Sequence[tuple[str, float]]]
"""Names and weights of the columns, and the rewards that the one column is the weighted sum of."""


def _named(count: int, known: Sequence[tuple[str, float]]) -> Named:
    if count == len(known):
        return [name for name, _ in known], [weight for _, weight in known], ()
    if count == 1 and known:
        return ["R"], [1.0], known
    if not known:
        return [f"reward {place}" for place in range(1, count + 1)], [1.0] * count, ()
    listed = ", ".join(name for name, _ in known)
    raise UserError(
        f"--rewards has {count} lists, but the config has {len(known)} rewards ({listed}): give one list for each in "
        "this order, separated by semicolons, or a single one for their weighted sum."
    )


def _lengths(text: str | None, count: int, default: int) -> list[int]:
    given = _numbers("--lengths", text) if text is not None else [float(default)] * count
    if not all(value >= 1 and value.is_integer() for value in given):
        raise UserError(f"--lengths is {text!r}, expected whole numbers of at least 1.")
    if len(given) != count:
        raise UserError(f"--lengths has {len(given)} values, but --rewards has {count}: give one for each.")
    return [int(value) for value in given]


def _steps(text: str, count: int) -> list[list[float]]:
    scores = [_numbers("--steps", part, empty=True) for part in text.split(";")]
    if len(scores) != count:
        expected = "step scores, separated by semicolons, like 1,0;1,1,0 (an empty one for none)"
        raise UserError(
            f"--steps has {len(scores)} lists, but --rewards has {count} completions: give each its list of {expected}."
        )
    if any(math.isinf(value) for of_row in scores for value in of_row):
        raise UserError(f"--steps is {text!r}, expected finite numbers (nan: the step was not judged).")
    return scores


def _spread(scores: Sequence[float], length: int) -> list[Step]:
    """Steps of about equal length, from the first token to the last."""
    if len(scores) > length:
        raise UserError(f"--lengths: a completion of {length} tokens cannot hold {len(scores)} steps.")
    ends = [length * place // len(scores) for place in range(len(scores) + 1)] if scores else [0]
    return [(score, ends[place], ends[place + 1]) for place, score in enumerate(scores)]


def _numbers(flag: str, text: str, *, empty: bool = False) -> list[float]:
    try:
        values = [float(value) for value in text.split(",") if value.strip()]
    except ValueError as error:
        raise UserError(f"{flag} is {text!r}, expected numbers separated by commas, like {REWARDS}.") from error
    if not values and not empty:
        raise UserError(f"{flag} is empty, expected numbers separated by commas, like {REWARDS}.")
    return values

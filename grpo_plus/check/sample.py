"""Sample group of ``grpo-plus check``: rewards and lengths from the flags."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_plus.advantages import RewardTable

REWARDS = "1,1,1,0"
LENGTH = 10


@dataclass(frozen=True)
class SampleGroup:
    """A group: ``columns`` has one list for each reward, with one number a completion.

    ``lengths`` are in tokens. ``summed`` has names and weights of the rewards whose weighted sum is the only column.
    """

    names: Sequence[str]
    weights: Sequence[float]
    columns: Sequence[Sequence[float]]
    lengths: Sequence[int]
    summed: Sequence[tuple[str, float]] = ()

    def table(self, *, valued: bool = False) -> "RewardTable":
        """Return the reward table of the group, as in a trainer; if ``valued``, each state has the mean reward."""
        from grpo_plus.advantages import RewardTable

        values: list[list[float]] | None = None
        if valued:
            mean = self.table().totals().nanmean().nan_to_num(0.0)
            values = [[float(mean)] * length for length in self.lengths]
        rows = list(map(list, zip(*self.columns, strict=True)))
        return RewardTable.of(rows, lengths=self.lengths, weights=self.weights, names=self.names, values=values)


def read_sample(rewards: str, lengths: str | None, config_rewards: Sequence[tuple[str, float]]) -> SampleGroup:
    """Parse the group from the flags.

    ``rewards`` is a list of numbers, or one for each reward, separated by semicolons. ``config_rewards`` has name and
    weight of every reward of the config, in order.
    """
    columns = [_numbers("--rewards", part) for part in rewards.split(";")]
    if any(math.isinf(value) for column in columns for value in column):
        raise ValueError(f"--rewards is {rewards!r}, expected finite numbers (nan: the reward does not apply).")
    count = len(columns[0])
    if any(len(column) != count for column in columns):
        counts = ", ".join(str(len(column)) for column in columns)
        raise ValueError(f"--rewards has lists of {counts} numbers: give each reward one number a completion.")
    sizes = _numbers("--lengths", lengths) if lengths is not None else [float(LENGTH)] * count
    if len(sizes) != count or not all(length >= 1 and length.is_integer() for length in sizes):
        raise ValueError(
            f"--lengths is {lengths!r}, expected a whole number of at least 1 for each of {count} rewards."
        )
    names, weights, summed = _names(len(columns), config_rewards)
    return SampleGroup(names, weights, columns, [int(length) for length in sizes], summed)


def _names(
    count: int, rewards: Sequence[tuple[str, float]]
) -> tuple[Sequence[str], Sequence[float], Sequence[tuple[str, float]]]:
    """Return names and weights of the columns, and the rewards that the only column sums."""
    if count == len(rewards):
        return [name for name, _ in rewards], [weight for _, weight in rewards], ()
    if count == 1 and rewards:
        return ["R"], [1.0], rewards
    if not rewards:
        return [f"reward {place}" for place in range(1, count + 1)], [1.0] * count, ()
    listed = ", ".join(name for name, _ in rewards)
    raise ValueError(
        f"--rewards has {count} lists, expected one for each reward of the config ({listed}), separated by semicolons, "
        "or a single one for their weighted sum."
    )


def _numbers(flag: str, text: str) -> list[float]:
    values: list[float] = []
    with suppress(ValueError):
        values = [float(value) for value in text.split(",") if value.strip()]
    if not values:
        raise ValueError(f"{flag} is {text!r}, expected numbers separated by commas, like {REWARDS}.")
    return values

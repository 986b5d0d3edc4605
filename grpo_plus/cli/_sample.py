"""The sample group of ``grpo-plus explain``: rewards, lengths, step scores and values as a user gives them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError

if TYPE_CHECKING:
    from grpo_plus.advantages import RewardTable

REWARDS = "1,1,1,0"
LENGTH = 10
Step = tuple[float, int, int]


@dataclass(frozen=True)
class Sample:
    """One group: ``columns`` has one list for each reward, with one number a completion.

    ``lengths`` are in tokens. ``steps`` has each completion's (score, first token, one past the last), ``states`` a
    word for the state before each step, ``values`` a critic's value before each of its tokens; None where none were
    given. ``summed`` are names and weights of the rewards that the one column is said to be the weighted sum of.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    columns: tuple[tuple[float, ...], ...]
    lengths: tuple[int, ...]
    steps: tuple[tuple[Step, ...], ...] | None = None
    summed: tuple[tuple[str, float], ...] = ()
    values: tuple[tuple[float, ...], ...] | None = None
    states: tuple[tuple[str, ...], ...] | None = None

    def table(self) -> "RewardTable":
        """The table that a trainer would make of the group."""
        from grpo_plus.advantages import RewardTable

        rows = list(map(list, zip(*self.columns, strict=True)))
        steps = None if self.steps is None else [list(of_row) for of_row in self._with_states(self.steps)]
        values = None if self.values is None else list(map(list, self.values))
        return RewardTable.of(
            rows, lengths=self.lengths, steps=steps, weights=self.weights, names=self.names, values=values
        )

    def _with_states(self, steps: Sequence[Sequence[Step]]) -> Sequence[Sequence[tuple[Any, ...]]]:
        if self.states is None:
            return steps
        numbers = {state: place for place, state in enumerate(dict.fromkeys(s for row in self.states for s in row))}
        known = ([numbers[state] if state else None for state in row] for row in self.states)
        return [
            [(*step, at) for step, at in zip(row, keys, strict=True)] for row, keys in zip(steps, known, strict=True)
        ]

    def valued(self) -> "Sample":
        """With the mean reward as the value of every state where no values were given."""
        totals = self.table().totals()
        known = totals[~totals.isnan()]
        mean = float(known.mean()) if len(known) else 0.0
        return self if self.values else replace(self, values=tuple((mean,) * length for length in self.lengths))


def read_sample(
    rewards: str,
    lengths: str | None,
    steps: str | None,
    known: Sequence[tuple[str, float]],
    values: str | None = None,
    *,
    states: str | None = None,
) -> Sample:
    """The group that the flags describe.

    ``rewards`` is a list of numbers, or one for each reward, separated by semicolons; ``steps`` one for each
    completion, and so is ``values``, with one number a token, and ``states``, with one word a step. Without
    ``lengths``, completions have as many tokens as values, or as steps need, and at least `LENGTH`. ``known`` is name
    and weight of every reward of the config, in order.
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
    keys = None if states is None else _states(states, scores)
    critic = None if values is None else _lists("--values", values, count, "values, one a token, like .5,.6;.4")
    sizes = _lengths(lengths, count, max(LENGTH, most)) if critic is None else _of_values(critic, lengths)
    return Sample(
        names=names,
        weights=weights,
        columns=tuple(map(tuple, columns)),
        lengths=tuple(sizes),
        steps=None if scores is None else tuple(map(_spread, scores, sizes)),
        summed=summed,
        values=None if critic is None else tuple(map(tuple, critic)),
        states=keys,
    )


def _states(text: str, scores: Sequence[Sequence[float]] | None) -> tuple[tuple[str, ...], ...]:
    """The state before each step, empty for none."""
    if scores is None:
        raise UserError("--states are given without --steps: they are the states before the steps.")
    found = tuple(tuple(map(str.strip, part.split(","))) if part.strip() else () for part in text.split(";"))
    counts = [len(row) for row in found]
    if counts != [len(row) for row in scores]:
        wanted = ";".join(",".join("a" for _ in row) for row in scores)
        raise UserError(f"--states is {text!r}, expected a word for each of --steps, such as {wanted!r}.")
    return found


def _named(
    count: int, known: Sequence[tuple[str, float]]
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[str, float], ...]]:
    if count == len(known):
        return tuple(name for name, _ in known), tuple(weight for _, weight in known), ()
    if count == 1 and known:
        return ("R",), (1.0,), tuple(known)
    if not known:
        return tuple(f"reward {place}" for place in range(1, count + 1)), (1.0,) * count, ()
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
    expected = "step scores, separated by semicolons, like 1,0;1,1,0 (an empty one for none)"
    scores = _lists("--steps", text, count, expected, empty=True)
    if any(math.isinf(value) for of_row in scores for value in of_row):
        raise UserError(f"--steps is {text!r}, expected finite numbers (nan: the step was not judged).")
    return scores


def _lists(flag: str, text: str, count: int, expected: str, *, empty: bool = False) -> list[list[float]]:
    """A list of numbers for each completion."""
    found = [_numbers(flag, part, empty=empty) for part in text.split(";")]
    if len(found) != count:
        raise UserError(
            f"{flag} has {len(found)} lists, but --rewards has {count} completions: give each its list of {expected}."
        )
    return found


def _of_values(values: Sequence[Sequence[float]], lengths: str | None) -> list[int]:
    """The length of each completion: one token a value."""
    if not all(math.isfinite(value) for of_row in values for value in of_row):
        raise UserError("--values are not all finite numbers: give each token one.")
    sizes = [len(of_row) for of_row in values]
    if lengths is not None and _lengths(lengths, len(sizes), 1) != sizes:
        listed = ",".join(map(str, sizes))
        raise UserError(f"--lengths is {lengths!r}, but --values has lists of {listed} numbers: leave --lengths out.")
    return sizes


def _spread(scores: Sequence[float], length: int) -> tuple[Step, ...]:
    """Steps of about equal length, from the first token to the last."""
    if len(scores) > length:
        raise UserError(f"--lengths: a completion of {length} tokens cannot hold {len(scores)} steps.")
    ends = [length * place // len(scores) for place in range(len(scores) + 1)] if scores else [0]
    return tuple((score, ends[place], ends[place + 1]) for place, score in enumerate(scores))


def _numbers(flag: str, text: str, *, empty: bool = False) -> list[float]:
    try:
        values = [float(value) for value in text.split(",") if value.strip()]
    except ValueError as error:
        raise UserError(f"{flag} is {text!r}, expected numbers separated by commas, like {REWARDS}.") from error
    if not values and not empty:
        raise UserError(f"{flag} is empty, expected numbers separated by commas, like {REWARDS}.")
    return values

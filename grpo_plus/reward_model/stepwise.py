"""Rows with steps and a label for each: TRL's stepwise format, ``prompt``, ``completions`` and ``labels``."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from grpo_plus.reward_model.preferences import RowError, conversation, refuse
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import short
from grpo_verifiers.reading.messages import content_text

COLUMNS = ("prompt", "completions", "labels")


@dataclass(frozen=True)
class Stepwise:
    """A question, the steps of one answer, and the label of each: 1, 0, or NaN for none."""

    row: int
    question: str
    steps: tuple[str, ...]
    labels: tuple[float, ...]


def read_stepwise(rows: Iterable[Mapping[str, Any]]) -> list[Stepwise]:
    """The rows of a dataset, in its order; rows are counted from 0.

    >>> read_stepwise([{"prompt": "1+1-1?", "completions": ["1+1=2", "2-1=0"], "labels": [True, False]}])[0].labels
    (1.0, 0.0)
    """
    found, problems = [], list[str]()
    for at, row in enumerate(rows):
        try:
            found.append(_stepwise(at, row))
        except RowError as error:
            problems.append(f"row {at}: {error}")
    refuse(problems)
    counts = Counter(label for row in found for label in row.labels if label == label)  # noqa: PLR0124 - NaN is none
    if len(counts) < 2:
        told = f"all {counts.total()} are {next(iter(counts)):.0f}" if counts else "there are none"
        raise ConfigError(
            [f"labels are of one class only ({told}): without good and bad steps nothing can be learned."]
        )
    return found


def _stepwise(at: int, row: Mapping[str, Any]) -> Stepwise:
    if missing := [name for name in COLUMNS if name not in row]:
        raise RowError(
            f"there is no {' and no '.join(missing)}. Steps with labels have the columns {', '.join(COLUMNS)}; this "
            f"row has {', '.join(map(str, row)) or 'no column'}."
        )
    prompt = conversation("prompt", row["prompt"])
    if isinstance(prompt, list):
        prompt = next((content_text(each.get("content")) for each in reversed(prompt) if each["role"] == "user"), "")
        if not prompt.strip():
            raise RowError("prompt has no message of the user, which would be the question.")
    steps, labels = row["completions"], row["labels"]
    for name, value in (("completions", steps), ("labels", labels)):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise RowError(f"{name} is {short(value, 80)}, expected a list with one entry a step.")
    if len(steps) != len(labels):
        raise RowError(f"there are {len(steps)} completions (steps) and {len(labels)} labels: give each step one.")
    if not steps:
        raise RowError("completions is empty: there are no steps.")
    for number, step in enumerate(steps):
        if not isinstance(step, str):
            raise RowError(f"completions[{number}] is {short(step, 80)}, expected the text of a step.")
        if not step.strip():
            raise RowError(f"completions[{number}] is empty, expected the text of a step.")
    told = tuple(_label(number, label) for number, label in enumerate(labels))
    return Stepwise(at, prompt, tuple(step.strip() for step in steps), told)


def _label(number: int, value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, Real) and (value in (0, 1) or math.isnan(value)):
        return float(value)
    raise RowError(f"labels[{number}] is {short(value, 80)}, expected 1, 0, or null for a step that nobody judged.")

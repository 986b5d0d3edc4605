"""A penalty on turns beyond those that a task takes, which sets in before the limit."""

from collections.abc import Sequence
from typing import Annotated

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range
from grpo_verifiers.turns import Turn
from grpo_verifiers.verdict import Status, Verdict


def _option_problems(*, expected: int, most: int, **_: float) -> list[str]:
    if most > expected:
        return []
    return [f"most ({most}) must be more than expected ({expected}): the penalty grows between the two."]


@Traits(home="inline", pure=True, option_problems=_option_problems)
def turns_overlong(
    completion: str,  # noqa: ARG001 - every check takes it
    turns: Sequence[Turn] = (),
    *,
    expected: Annotated[int, Range(1)],
    most: Annotated[int, Range(2)],
    max_penalty: Annotated[float, Range(high=0, finite=True)] = -1.0,
) -> Verdict:
    """Score 0 up to ``expected`` turns, then linearly down to ``max_penalty`` at ``most`` and beyond.

    >>> from grpo_verifiers.turns import Turn
    >>> turns_overlong("", [Turn(0, 1, "a"), Turn(2, 3, "b"), Turn(4, 5, "c")], expected=2, most=4).score
    -0.5

    Use it when a model goes on calling tools long after it could answer.

    Scores: 0 correct; between 0 and ``max_penalty`` partial; ``max_penalty`` wrong.

    Config:
        tools: [calculator]
        verifiers: [math, {name: turns_overlong, expected: 2, most: 6}]

    Args:
        completion: the model's text, which is not looked at.
        turns: what the model did.
        expected: turns that cost nothing.
        most: turns at which the penalty is whole.
        max_penalty: the whole penalty.
    """
    share = min(1.0, max(0.0, (len(turns) - expected) / (most - expected)))
    status = Status.CORRECT if share == 0 else Status.WRONG if share == 1 else Status.PARTIAL
    return Verdict(max_penalty * share if share else 0.0, status, f"{len(turns)} turns, {expected} expected")

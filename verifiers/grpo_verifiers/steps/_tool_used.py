"""Whether a completion called the tools that it should have called."""

from collections.abc import Sequence
from typing import Annotated

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range
from grpo_verifiers.turns import Turn
from grpo_verifiers.verdict import Step, Verdict


def _option_problems(*, names: Sequence[str] = (), least: int = 1, most: int | None = None, **_: bool) -> list[str]:
    problems = []
    if most is not None and most < least:
        problems.append(f"most ({most}) must not be less than least ({least}): no number of calls would be right.")
    if len(set(names)) < len(names):
        problems.append(f"names {list(names)!r} has a name twice.")
    return problems


@Traits(home="inline", pure=True, steps=True, option_problems=_option_problems)
def tool_used(
    completion: str,  # noqa: ARG001 - every check takes it
    turns: Sequence[Turn] = (),
    *,
    names: Sequence[str] = (),
    least: Annotated[int, Range(0)] = 1,
    most: Annotated[int, Range(0)] | None = None,
    successful: bool = True,
) -> Verdict:
    """Score 1 where there are from ``least`` to ``most`` calls of a tool, else 0; a turn with a call is a step of 1.

    >>> from grpo_verifiers.turns import Call, Turn
    >>> tool_used("4", [Turn(0, 9, "", (Call("calculator", {"expression": "2+2"}, "4"),)), Turn(30, 31, "4")]).score
    1.0

    Use it when a model answers without the tools that it should use. Give it a small weight, and weaken it later: calls
    for the sake of calls are paid, too.

    Scores: 1 correct; 0 wrong. Each turn with a call is a step: 1 with a call that counts, else 0.

    Config:
        tools: [calculator]
        verifiers: [math, {name: tool_used, weight: 0.1, names: [calculator]}]

    Args:
        completion: the model's text, which is not looked at.
        turns: what the model did.
        names: the tools that count; empty: all.
        least: calls that there must be.
        most: calls that there may be; null: any number.
        successful: only calls that came to a result count; errors and late ones do not.
    """
    counts = [
        sum((not names or call.name in names) and (call.status == "ok" or not successful) for call in turn.calls)
        for turn in turns
    ]
    scores = [float(count > 0) if turn.calls else None for turn, count in zip(turns, counts, strict=True)]
    steps = tuple(Step(*turn.span, score) for turn, score in zip(turns, scores, strict=True))
    total = sum(counts)
    right = total >= least and (most is None or total <= most)
    bounds = f"at least {least}" if most is None else f"{least} to {most}"
    return Verdict(float(right), detail=f"{total} calls of {', '.join(names) or 'tools'}, {bounds}", steps=steps)

"""Verifiers of turns: tools that were called and how well, rewards of the environment."""

from collections.abc import Sequence
from typing import Annotated

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import counted
from grpo_verifiers.options import Range
from grpo_verifiers.steps.aggregate import Aggregate, step_verdict
from grpo_verifiers.turns import CallStatus, Turn
from grpo_verifiers.verdict import Status, Step, Verdict


def _bounds_problems(*, names: Sequence[str] = (), least: int = 1, most: int | None = None, **_: bool) -> list[str]:
    problems = []
    if most is not None and most < least:
        problems.append(f"most ({most}) must not be less than least ({least}): no number of calls would be right.")
    if len(set(names)) < len(names):
        problems.append(f"names {list(names)!r} has a name twice.")
    return problems


@Traits(home="inline", pure=True, steps=True, option_problems=_bounds_problems)
def tool_used(
    completion: str,  # noqa: ARG001 - every check takes it
    turns: Sequence[Turn] = (),
    *,
    names: Sequence[str] = (),
    least: Annotated[int, Range(0)] = 1,
    most: Annotated[int, Range(0)] | None = None,
    successful: bool = True,
) -> Verdict:
    """Score 1 for ``least`` to ``most`` calls of a tool, else 0; a turn with a call is a step of 1.

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
        completion: the model's text; unused.
        turns: the turns of the completion.
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
    return Verdict(
        float(right), detail=f"{counted(total, 'call')} of {', '.join(names) or 'tools'}, {bounds}", steps=steps
    )


_WRONG: tuple[CallStatus, ...] = ("unknown", "bad_arguments")
"""Statuses that are the model's fault. A tool that raises, dies or is late was called correctly."""


@Traits(home="inline", pure=True, steps=True)
def tool_valid(
    completion: str,  # noqa: ARG001 - every check takes it
    turns: Sequence[Turn] = (),
    *,
    without: float | None = None,
) -> Verdict:
    """Score the share of calls of existing tools with arguments that fit their schema; each turn with calls is a step.

    >>> from grpo_verifiers.turns import Call, Turn
    >>> turn = Turn(0, 9, "", (Call("calculator", {"expression": "2+2"}, "4"), Call("clock", {}, "", "unknown")))
    >>> tool_valid("", [turn]).score
    0.5

    Use it when calls are malformed: unknown names, arguments that do not fit the schema.

    Scores: the share of calls, from 0 (wrong) to 1 (correct), partial between; without a call ``without``, or None, not
    applicable. Each turn with calls is a step: its share.

    Config:
        tools: [calculator]
        verifiers: [math, {name: tool_valid, weight: 0.1}]

    Args:
        completion: the model's text; unused.
        turns: the turns of the completion.
        without: the score of a completion without a call; null: the check does not apply to it.
    """
    shares: list[float | None] = [
        sum(call.status not in _WRONG for call in turn.calls) / len(turn.calls) if turn.calls else None
        for turn in turns
    ]
    steps = tuple(Step(*turn.span, share) for turn, share in zip(turns, shares, strict=True))
    calls = [call for turn in turns for call in turn.calls]
    if not calls:
        status = Status.NOT_APPLICABLE if without is None else None
        return Verdict(without, status, "no call", steps)  # type: ignore[arg-type]  # None: by score
    wrong = [call for call in calls if call.status in _WRONG]
    why = f"; {wrong[0].name}: {wrong[0].result[:200]}" if wrong else ""
    return Verdict(1 - len(wrong) / len(calls), None, f"{len(wrong)} of {len(calls)} calls are wrong{why}", steps)  # type: ignore[arg-type]  # None: by score


@Traits(home="inline", pure=True, steps=True)
def turn_reward(
    completion: str,  # noqa: ARG001 - every check takes it
    turns: Sequence[Turn] = (),
    *,
    aggregate: Aggregate = "mean",
) -> Verdict:
    """Score each turn as the environment's ``get_turn_reward`` does; a turn that it gave nothing for has no score.

    >>> from grpo_verifiers.turns import Turn
    >>> turn_reward("", [Turn(0, 1, "a", reward=1.0), Turn(2, 3, "b", reward=0.0)]).score
    0.5

    Use it when an environment rewards turns (``get_turn_reward``), and credit should go turn by turn.

    Scores: that of the turns by ``aggregate``; each turn is a step with the environment's reward; None, not applicable,
    where it gave none.

    Config:
        advantage: {name: process, credit: turn}
        environment: ./game.py:Treasure
        verifiers: [{name: turn_reward, weight: 0.0}]

    Args:
        completion: the model's text; unused.
        turns: the turns of the completion.
        aggregate: the completion's score from those of its turns: min, mean, last or product.
    """
    spans = [turn.span for turn in turns]
    scores = [turn.reward for turn in turns]
    return step_verdict(spans, scores, aggregate, f"{sum(score is not None for score in scores)} turns with a reward")

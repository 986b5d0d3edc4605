"""The share of calls that a tool could take: its name is known, and the arguments fit what it says it takes."""

from collections.abc import Sequence

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.turns import CallStatus, Turn
from grpo_verifiers.verdict import Status, Step, Verdict

_WRONG: tuple[CallStatus, ...] = ("unknown", "bad_arguments")
"""What is the model's own fault. A tool that raises, dies or is late was called in the right way."""


@Traits(home="inline", pure=True, steps=True)
def tool_valid(
    completion: str,  # noqa: ARG001 - every check takes it
    turns: Sequence[Turn] = (),
    *,
    without: float | None = None,
) -> Verdict:
    """Score the share of calls of known tools with arguments that fit their schema; each turn with calls is a step.

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
        completion: the model's text, which is not looked at.
        turns: what the model did.
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

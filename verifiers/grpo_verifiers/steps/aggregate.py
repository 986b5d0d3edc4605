"""The score of a completion from the scores of its steps."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.steps.segments import Span
from grpo_verifiers.verdict import Status, Step, Verdict

Aggregate = Literal["min", "mean", "last", "product"]
DEFAULT: Aggregate = "min"
"""A chain is as strong as its weakest step; a sum would pay for more steps, and the mean for easy ones."""

_HOW: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "last": lambda scores: scores[-1],
    "product": math.prod,
}


def step_verdict(
    spans: Sequence[Span],
    scores: Sequence[float | None],
    aggregate: Aggregate = DEFAULT,
    detail: str = "",
    status: Status | None = None,
) -> Verdict:
    """A verdict with steps and a score from theirs; not applicable if no step is scored.

    >>> step_verdict([(0, 4), (4, 9)], [1.0, 0.5], "mean").score
    0.75

    Args:
        spans: of the steps, character offsets into ``completion_text``.
        scores: one a step; None for a step without a judgement, which is left out.
        aggregate: ``"min"``, ``"mean"``, ``"last"`` (the last scored step) or ``"product"``. There is no sum: it pays
            for padding.
        detail: the reason, for people.
        status: the kind of outcome; by default from the score.
    """
    if aggregate not in _HOW:
        raise ValueError(unknown("aggregate", aggregate, get_args(Aggregate)))
    steps = tuple(Step(*span, score) for span, score in zip(spans, scores, strict=True))
    scored = [step.score for step in steps if step.score is not None]
    if not scored:
        return Verdict(None, Status.NOT_APPLICABLE, detail or "no step can be judged", steps)
    return Verdict(_HOW[aggregate](scored), status, detail, steps)  # type: ignore[arg-type]  # None: by score


def reaggregate(verdict: Verdict, aggregate: Aggregate | str | None) -> Verdict:
    """The verdict with its score recomputed from its steps by another aggregate.

    Unchanged without steps, with None, and after a timeout or an error: such a score is not one of the steps.
    """
    if aggregate is None or not verdict.steps or verdict.status in (Status.TIMEOUT, Status.ERROR):
        return verdict
    spans = [(step.start, step.end) for step in verdict.steps]
    return step_verdict(spans, [step.score for step in verdict.steps], aggregate, verdict.detail)  # type: ignore[arg-type]  # checked there

"""Compositions of verifiers. Every part is submitted before the first result is collected.

Rules of all compositions. A part that does not apply (score None, not_applicable) is ignored. A part that failed
for an external reason (score None, error) makes the result unknown (None, error), unless the remaining parts decide it.
A failure caused by the completion counts with its score, 0. The status and the detail are those of the deciding part;
a sum with a failed part has the status of that part.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from grpo_verifiers.base import Pending, Rows, Verifier, merge_columns
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.errors.messages import label_problem, short
from grpo_verifiers.options import Range, value_problems
from grpo_verifiers.verdict import LARGEST, Status, Verdict, blamed
from grpo_verifiers.verifying import get_verifier

Part = Verifier | str | Callable[..., Any]
LabelledVerdict = tuple[str, Verdict]
Score = Annotated[float, Range(-LARGEST, LARGEST, text="a finite number")]


def all_of(*parts: Part, label: str | None = None) -> Verifier:
    """The lowest score of the parts. Any score of 0 or less decides it.

    Use it when a completion is right only if every check passes. Put it into a file, ``both = all_of("math",
    "think_format")``, and name it in a config as ``./file.py:both``.

    >>> all_of("exact", "numeric").verify("4.0", answer="4").score
    0.0

    Args:
        *parts: verifiers, or their names.
        label: its name in logs.
    """
    return Composite("all_of", parts, label, partial(_merge_extreme, sign=-1))


def any_of(*parts: Part, label: str | None = None) -> Verifier:
    """The highest score of the parts: one way of being right is enough. Decided by any score of 1 or more.

    Use it when several forms of an answer are right, each recognised by another check.

    >>> any_of("exact", "numeric").verify("4.0", answer="4").score
    1.0

    Args:
        *parts: verifiers, or their names.
        label: its name in logs.
    """
    return Composite("any_of", parts, label, partial(_merge_extreme, sign=1))


def weighted(parts: Mapping[Any, float], *, label: str | None = None) -> Verifier:
    """The weighted sum of the parts that apply; not divided by anything, as TRL adds rewards.

    Use it when several rewards should be one column, inside ``gated`` say. Verifiers of a config have
    weights without it.

    >>> weighted({"numeric": 1.0, "think_format": 0.5}).verify("<think>2 + 2</think>4", answer="4").score
    1.5

    Args:
        parts: verifier to weight.
        label: its name in logs.
    """
    if not isinstance(parts, Mapping):
        raise KeywordError(f"weighted: parts is {short(parts)}, expected a mapping of verifiers to their weights.")
    for part, weight in parts.items():
        for problem in value_problems(f"the weight of {part!r}", weight, Score):
            raise KeywordError(f"weighted: {problem}")
    weights = [float(weight) for weight in parts.values()]
    return Composite("weighted", parts, label, partial(_merge_sum, weights=tuple(weights)), weights=weights)


def gated(gate: Part, then: Part, *, threshold: float = 1.0, label: str | None = None) -> Verifier:
    """``then`` counts only where ``gate`` passes: ``gated("math", "think_format")`` pays for format on right answers.

    Use it when a reward for form or length would be earned without a right answer.

    >>> gated("numeric", "think_format").verify("<think>2 + 2</think>5", answer="4").score
    0.0

    Where the gate scores below ``threshold`` the score is 0, with the gate's status. Where the gate does not apply,
    neither does the composition.

    Args:
        gate: the verifier that must pass, or its name.
        then: the verifier whose score counts.
        threshold: the score of ``gate`` from which it passes.
        label: its name in logs.
    """
    for problem in value_problems("threshold", threshold, Score):
        raise KeywordError(f"gated: {problem}")
    return Composite("gated", [gate, then], label, partial(_merge_gated, threshold=threshold), threshold=threshold)


class Composite(Verifier):
    """A verifier with parts; ``merge`` combines their verdicts on a completion."""

    def __init__(
        self,
        kind: str,
        parts: Iterable[Part],
        label: str | None,
        merge: Callable[[list[LabelledVerdict]], Verdict],
        **settings: Any,
    ) -> None:
        """Take the parts, or find them by name; ``settings`` are for `describe`."""
        self.parts = [get_verifier(part) for part in parts]
        if not self.parts:
            raise KeywordError(f"{kind} needs at least one verifier.")
        if label is not None and (problem := label_problem(label)):
            raise KeywordError(f"{kind}: {problem}")
        super().__init__(label or f"{kind}({', '.join(part.label for part in self.parts)})")
        self.kind, self.settings = kind, settings
        self._merge = merge
        self.required_columns = merge_columns([part.required_columns for part in self.parts])
        needed = set(self.required_columns.values())
        optional = merge_columns([part.optional_columns for part in self.parts])
        self.optional_columns = {name: column for name, column in optional.items() if column not in needed}
        self.named_columns = merge_columns([part.named_columns for part in self.parts])
        self.tried_columns = merge_columns([part.gold_columns for part in self.parts])
        steps = {part.gives_steps for part in self.parts}
        self.gives_steps = True if True in steps else None if None in steps else False

    def describe(self) -> dict[str, Any]:
        """Settings for people."""
        parts = [part.describe() for part in self.parts]
        return {"label": self.label, "kind": self.kind, "parts": parts, **self.settings}

    def start(
        self, /, prompts: Rows | None, completions: Rows, completion_ids: Rows | None = None, **columns: Any
    ) -> Pending:
        """Submit everything without waiting."""
        pending = [part.start(prompts, completions, completion_ids, **columns) for part in self.parts]
        labels = [part.label for part in self.parts]

        def finish() -> tuple[list[Verdict], list[float]]:
            by_part = [one.result() for one in pending]
            verdicts = [self._merge(list(zip(labels, row, strict=True))) for row in zip(*by_part, strict=True)]
            return verdicts, [max(row) for row in zip(*(one.seconds for one in pending), strict=True)]

        return Pending(finish)


def _merge_extreme(row: list[LabelledVerdict], *, sign: int) -> Verdict:
    """The highest score with a ``sign`` of 1, the lowest with -1."""
    scored = [(named, named[1].score) for named in row if named[1].score is not None]
    if scored:
        best, score = max(scored, key=lambda pair: sign * pair[1])
        decided = score >= 1 if sign > 0 else score <= 0
        if decided or not _first_failure(row):
            return _as(best, score, steps=_steps(row))
    return _as(_first_failure(row) or row[0], None)


def _merge_sum(row: list[LabelledVerdict], *, weights: Sequence[float]) -> Verdict:
    failed = _first_failure(row)
    if failed:  # a sum without one of its terms compares with no other
        return _as(failed, None)
    scored = [(w, v.score) for w, (_, v) in zip(weights, row, strict=True) if v.score is not None]
    if not scored:
        return _as(row[0], None)
    detail = ", ".join(f"{name}={verdict.score:g}" for name, verdict in row if verdict.score is not None)
    try:
        total = math.fsum(weight * score for weight, score in scored)
        most = math.fsum(weight for weight, _ in scored if weight > 0)
        return Verdict(total, _sum_status(row, total, most), detail, _steps(row))
    except (OverflowError, ValueError) as error:  # a term or the sum is too large for a score
        return blamed(f"the weighted sum is not a valid score: {error} ({detail})")


def _sum_status(row: Sequence[LabelledVerdict], total: float, most: float) -> Status:
    statuses = [verdict.status for _, verdict in row if verdict.score is not None]
    for status in (Status.ERROR, Status.TIMEOUT):
        if status in statuses:
            return status
    if set(statuses) == {Status.UNPARSABLE}:
        return Status.UNPARSABLE
    return Status.CORRECT if total >= most > 0 else Status.WRONG if total <= 0 else Status.PARTIAL


def _merge_gated(row: list[LabelledVerdict], *, threshold: float) -> Verdict:
    gate, then = row
    if _passes(gate[1], threshold):
        return _as(then, then[1].score, steps=then[1].steps)
    if gate[1].score is None:
        return _as(gate, None)
    status = Status.WRONG if gate[1].status in {Status.CORRECT, Status.PARTIAL} else gate[1].status
    return Verdict(0.0, status, _detail(gate))


def _passes(gate: Verdict, threshold: float) -> bool:
    return gate.score is not None and gate.score >= threshold


def _first_failure(row: Sequence[LabelledVerdict]) -> LabelledVerdict | None:
    failed = (named for named in row if named[1].score is None and named[1].status is not Status.NOT_APPLICABLE)
    return next(failed, None)


def _steps(row: Sequence[LabelledVerdict]) -> tuple[Any, ...]:
    return next((verdict.steps for _, verdict in row if verdict.steps), ())


def _detail(named: LabelledVerdict) -> str:
    label, verdict = named
    return f"{label}: {verdict.detail}" if verdict.detail else label


def _as(named: LabelledVerdict, score: float | None, steps: tuple[Any, ...] = ()) -> Verdict:
    return Verdict(score, named[1].status, _detail(named), steps)

"""The verdict on one completion: a score, a status, a reason; and the meaning of failures."""

import math
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise
from numbers import Complex, Real
from typing import Any, Literal

from grpo_verifiers.errors import UnavailableError, VerifierFailedError
from grpo_verifiers.errors.messages import exact, short
from grpo_verifiers.stats import percentile

FailureKind = Literal["raised", "timeout", "died", "outside", "broken"]
"""The ways in which a call may give no verdict: this is the one place for their meaning.

A failure that may depend on the completion scores 0: left out of its group's statistics, a completion that breaks its
check would do better than a wrong one. Such a call raised, returned no verdict, was late, or lost its process;
``on_error`` can change the first two. A failure that cannot depend on it leaves the completion out: ``outside``, a
server is down, or the row's gold is unusable. A check reports it by ``UnavailableError``, or by a verdict of score None
and status error. A check that is ``broken`` for every completion stops the run: it cannot be loaded, or raises
``VerifierFailedError``.
"""
LARGEST = 3.4028234663852886e38
"""The largest score, and its negative the smallest: rewards are float32, and a larger number is infinite."""
MAX_DETAIL = 2000
MAX_STEPS = 10_000
MAX_OFFSET = 1 << 53
"""Past the end of any completion, and exact in JSON."""


class Status(StrEnum):
    """Kinds of outcome; each is counted and logged on its own."""

    CORRECT = "correct"
    WRONG = "wrong"
    PARTIAL = "partial"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    ERROR = "error"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True)
class Step:
    """The score of one reasoning step.

    >>> Verdict(0.5, steps=(Step(0, 4, 1.0), Step(4, 9, 0.0))).steps[1].score
    0.0

    Attributes:
        start: offset of its first character in the completion as sampled.
        end: one past its last character; past the end of the completion it means the end.
        score: None for a step without a judgement.
    """

    start: int
    end: int
    score: float | None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, _offset(f"Step.{name}", getattr(self, name)))
        if not 0 <= self.start <= self.end <= MAX_OFFSET:
            raise ValueError(
                f"a Step needs 0 <= start <= end, got start={short(self.start)} and end={short(self.end)}."
            )
        if self.score is not None:
            object.__setattr__(self, "score", score_of("Step.score", self.score))


@dataclass(frozen=True)
class Verdict:
    """The score of one completion, with its status and reason.

    >>> Verdict(1.0).status, Verdict(0.4).status, Verdict(None).status
    (<Status.CORRECT: 'correct'>, <Status.PARTIAL: 'partial'>, <Status.NOT_APPLICABLE: 'not_applicable'>)

    Attributes:
        score: None leaves the completion out of the group's statistics; reserved for "does not apply" and for
            failures that do not depend on the completion (see `FailureKind`).
        status: the kind of outcome; by default from the score (1 and more: correct, 0 and less: wrong,
            between: partial, None: not applicable).
        detail: the reason, for people; cut after 2,000 characters.
        steps: scores of the reasoning steps, if the verifier gives any, sorted by position. They must not overlap.
    """

    score: float | None
    status: Status = None  # type: ignore[assignment]  # filled from the score right below
    detail: str = ""
    steps: tuple[Step, ...] = field(default=())

    def __post_init__(self) -> None:
        # most values have their exact type already: test that first, since it is cheap
        if self.score is not None and not (type(self.score) is float and -LARGEST <= self.score <= LARGEST):
            object.__setattr__(self, "score", score_of("Verdict.score", self.score))
        if type(self.status) is not Status:
            status = self.status if self.status is not None else _status_of(self.score)
            object.__setattr__(self, "status", Status(status))
        if not isinstance(self.detail, str):
            raise TypeError(f"Verdict.detail must be a string, not {type(self.detail).__name__}.")
        if type(self.detail) is not str or len(self.detail) > MAX_DETAIL:
            object.__setattr__(self, "detail", exact(self.detail, MAX_DETAIL))
        if type(self.steps) is tuple and not self.steps:
            return
        steps = tuple(islice(self.steps, MAX_STEPS + 1))
        if len(steps) > MAX_STEPS:
            raise ValueError(f"Verdict.steps holds too many steps: at most {MAX_STEPS}.")
        if not all(isinstance(step, Step) for step in steps):
            raise TypeError("Verdict.steps must hold Step objects.")
        object.__setattr__(self, "steps", in_order(steps))


def checked_copy(verdict: Any) -> Verdict:
    """A validated copy with exact types: a subclass or ``object.__setattr__`` may have changed a frozen verdict.

    Raises:
        TypeError: it is no verdict, or holds a value of a wrong type.
        ValueError: it holds a value that a verdict may not have.
    """
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{short(verdict)} is not a Verdict")
    steps = [Step(step.start, step.end, step.score) for step in islice(verdict.steps, MAX_STEPS + 1)]
    return Verdict(verdict.score, verdict.status, verdict.detail, tuple(steps))


def score_of(name: str, value: Any) -> float:
    """A number of any kind as a float that rewards can hold.

    Raises:
        TypeError: it is no number.
        ValueError: it is not finite, or beyond float32.
    """
    try:
        number = float(_number(value))
    except OverflowError:
        number = LARGEST * 10
    except Exception as error:
        raise TypeError(f"{name} must be a number or None, not {short(value)}.") from error
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, not {number}; use None for 'does not apply'.")
    if abs(number) > LARGEST:
        raise ValueError(f"{name} must be between {-LARGEST:.8g} and {LARGEST:.8g} (float32), not {short(value)}.")
    return number


def _number(value: Any) -> Any:
    """The value for ``float``, which would read text, too, and drop the imaginary part of a numpy number."""
    scalar = value.item() if is_scalar(value) else value
    if isinstance(scalar, str | bytes | bytearray | memoryview):
        raise TypeError("text")
    if isinstance(scalar, Complex) and not isinstance(scalar, Real):
        raise TypeError("a complex number")
    return scalar


def is_scalar(value: Any) -> bool:
    """True for a number of numpy, torch or the like: one element without dimensions."""
    return hasattr(value, "item") and getattr(value, "shape", None) == () and hasattr(value, "__float__")


def _status_of(score: float | None) -> Status:
    if score is None:
        return Status.NOT_APPLICABLE
    if score >= 1:
        return Status.CORRECT
    return Status.WRONG if score <= 0 else Status.PARTIAL


def _offset(name: str, value: Any) -> int:
    """An integer of any type as an exact int."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r}.")
    try:
        return int.__int__(operator.index(value))
    except Exception as error:
        raise TypeError(f"{name} must be an integer, not {short(value)}.") from error


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Steps in the order of the text; an empty one overlaps nothing.

    Raises:
        ValueError: two overlap.
    """
    ordered = tuple(sorted(steps, key=lambda step: (step.start, step.end)))
    for one, two in pairwise(step for step in ordered if step.end > step.start):
        if two.start < one.end:
            raise ValueError(
                f"steps overlap: {one.start} to {one.end} and {two.start} to {two.end}. End one where the next starts."
            )
    return ordered


def kind_of(error: BaseException) -> FailureKind:
    """The kind of an exception, by its class: an object may claim to be of another."""
    if issubclass(type(error), VerifierFailedError):
        return "broken"
    return "outside" if issubclass(type(error), UnavailableError) else "raised"


def blamed(reason: str, status: Status = Status.ERROR) -> Verdict:
    """The verdict on a completion that may have caused the failure: 0."""
    return Verdict(0.0, status, reason)


def excused(reason: str) -> Verdict:
    """The verdict on a completion that cannot have caused the failure: none, and an error."""
    return Verdict(None, Status.ERROR, reason)


def metrics_of(label: str, verdicts: Sequence[Verdict], seconds: Sequence[float]) -> dict[str, float]:
    """Mean score, share of every status, and latency percentiles of one verifier."""
    if not verdicts:
        return {}
    counts = Counter(verdict.status for verdict in verdicts)
    metrics = {f"verifiers/{label}/status/{status.value}": counts[status] / len(verdicts) for status in Status}
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    if scores:
        metrics[f"verifiers/{label}/mean"] = math.fsum(scores) / len(scores)
    if seconds:
        metrics[f"verifiers/{label}/latency_p50"] = percentile(seconds, 0.5)
        metrics[f"verifiers/{label}/latency_p95"] = percentile(seconds, 0.95)
    return metrics

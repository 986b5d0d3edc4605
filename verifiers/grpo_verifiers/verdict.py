"""What a verifier says about one completion."""

import math
from dataclasses import dataclass, field
from enum import StrEnum


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

    Attributes:
        start: offset of its first character in the completion as sampled.
        end: one past its last character.
        score: None where the step states nothing that can be judged.
    """

    start: int
    end: int
    score: float | None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Step.{name} must be an integer, not {value!r}.")
        if not 0 <= self.start <= self.end:
            raise ValueError(f"a Step needs 0 <= start <= end, got start={self.start} and end={self.end}.")
        if self.score is not None:
            object.__setattr__(self, "score", _finite("Step.score", self.score))


@dataclass(frozen=True)
class Verdict:
    """One completion's score, how it came about, and why.

    Attributes:
        score: None leaves the completion out of the group's statistics; reserved for "does not apply" and for
            failures that do not depend on the completion.
        status: the kind of outcome; unless given, read off the score (1 and more: correct, 0 and less: wrong,
            between: partial, None: not applicable).
        detail: the reason, for people.
        steps: scores of the reasoning steps, if the verifier gives any.
    """

    score: float | None
    status: Status = None  # type: ignore[assignment]  # filled from the score right below
    detail: str = ""
    steps: tuple[Step, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.score is not None:
            object.__setattr__(self, "score", _finite("Verdict.score", self.score))
        status = self.status if self.status is not None else _status_of(self.score)
        object.__setattr__(self, "status", Status(status))
        if not isinstance(self.detail, str):
            raise TypeError(f"Verdict.detail must be a string, not {type(self.detail).__name__}.")
        steps = tuple(self.steps)
        if not all(isinstance(step, Step) for step in steps):
            raise TypeError("Verdict.steps must hold Step objects.")
        object.__setattr__(self, "steps", steps)


def _status_of(score: float | None) -> Status:
    if score is None:
        return Status.NOT_APPLICABLE
    if score >= 1:
        return Status.CORRECT
    return Status.WRONG if score <= 0 else Status.PARTIAL


def _finite(what: str, value: object) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(f"{what} must be a number or None, not {value!r}.")
    try:
        number = float(value)  # type: ignore[arg-type]  # numpy scalars and bools convert; the rest raises
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a number or None, not {value!r}.") from error
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, not {number}; use None for 'does not apply'.")
    return number

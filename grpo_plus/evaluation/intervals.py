"""Confidence intervals of means over questions with several samples each.

Samples of one question are correlated, so the question is the unit of variation. The interval is Wilson's (1927) with
an effective number of samples: that of independent trials with the same variance of the mean (Korn and Graubard 1998,
for clustered surveys). With one sample for each question it is Wilson's own. Unlike a normal interval it stays within
[0, 1] and keeps a width when all questions agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist


@dataclass(frozen=True)
class Estimate:
    """A mean over ``questions`` questions, and its confidence interval."""

    value: float
    low: float
    high: float
    questions: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(values: Sequence[float], samples: float = 1.0, confidence: float = 0.95) -> Estimate:
    """The mean of one number in [0, 1] for each question, with its interval.

    >>> share([0.0, 1.0, 1.0, 1.0], samples=4).value
    0.75

    ``samples`` is the average number of samples of a question; the interval is never narrower than for that many
    independent trials each.

    Raises:
        ValueError: there are no questions, or a value is outside [0, 1].
    """
    questions = _count(values)
    if min(values) < 0 or max(values) > 1:
        raise ValueError(f"shares lie between 0 and 1, got {min(values)} to {max(values)}.")
    mean = sum(values) / questions
    z = _quantile(confidence)
    spread = sum((value - mean) ** 2 for value in values) / questions
    trials = questions * max(1.0, samples)
    if spread > 0:
        trials = min(trials, mean * (1 - mean) / (spread / questions))
    middle = (mean + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * sqrt(mean * (1 - mean) / trials + z * z / (4 * trials * trials))
    # At 0 and 1, rounding could put the mean itself outside.
    return Estimate(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)), questions)


def mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean of one number for each question, such as a score or a paired difference, with a normal interval.

    >>> mean([0.25, 0.75]).value
    0.5
    """
    questions = _count(values)
    middle = sum(values) / questions
    if questions == 1:
        return Estimate(middle, float("-inf"), float("inf"), 1)
    spread = sum((value - middle) ** 2 for value in values) / (questions - 1)
    half = _quantile(confidence) * sqrt(spread / questions)
    return Estimate(middle, middle - half, middle + half, questions)


def _count(values: Sequence[float]) -> int:
    if not values:
        raise ValueError("there are no questions to take the mean of.")
    return len(values)


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, expected a number between 0 and 1, such as 0.95.")
    return NormalDist().inv_cdf((1 + confidence) / 2)

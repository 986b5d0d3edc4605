"""How sure a mean over questions is, when each question was sampled several times.

Samples of one question resemble each other, so the question is the unit: what varies is the estimate from question to
question. The interval is Wilson's (1927) with an effective number of samples, the number of independent trials whose
mean would vary as much (Korn and Graubard 1998, for surveys in clusters). With one sample a question it is Wilson's
own; unlike a normal interval it never leaves [0, 1], nor does it shrink to a point when all questions are answered
alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist


@dataclass(frozen=True)
class Estimate:
    """A mean and where it probably lies.

    Attributes:
        value: the mean over questions.
        low: lower end of the interval.
        high: upper end.
        questions: how many went in.
    """

    value: float
    low: float
    high: float
    questions: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(values: Sequence[float], samples: float = 1.0, confidence: float = 0.95) -> Estimate:
    """The mean of one number in [0, 1] for each question, with its interval.

    Args:
        values: the estimate of each question.
        samples: samples of each question, on average: the mean is never taken for surer than that many independent
            trials would make it.
        confidence: how often the interval should hold the truth.

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
    # Rounding could leave the mean itself outside at 0 and 1.
    return Estimate(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)), questions)


def mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean of any number for each question, such as a score or a paired difference, with a normal interval."""
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

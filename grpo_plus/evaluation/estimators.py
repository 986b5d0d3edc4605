"""Estimates from several samples of each question: exact pass@k and majority@k, and intervals of their means.

pass@k and majority@k of a question are expectations over all choices of k of its n samples. Chen et al. 2021,
"Evaluating Large Language Models Trained on Code" (arXiv 2107.03374), equation 1; Wang et al. 2022, "Self-Consistency
Improves Chain of Thought Reasoning in Language Models" (arXiv 2203.11171), for the vote.

Samples of one question are correlated, so the question is the unit of variation. The interval is Wilson's (1927) with
an effective number of samples: that of independent trials with the same variance of the mean (Korn and Graubard 1998,
for clustered surveys). With one sample for each question it is Wilson's own. Unlike a normal interval it stays in
[0, 1] and has a width even if all questions agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, log, sqrt
from statistics import NormalDist

Z = NormalDist().inv_cdf(0.975)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of ``k`` samples is right, taken without replacement from ``n``, of which ``c`` are right.

    >>> pass_at_k(4, 2, 1), pass_at_k(4, 1, 4)
    (0.5, 1.0)

    ``1 - C(n-c, k) / C(n, k)`` is unbiased for the probability under k fresh samples. It is computed as a product of
    factors between 0 and 1, since binomial coefficients overflow.

    Raises:
        ValueError: not ``0 <= c <= n`` and ``1 <= k <= n``.
    """
    _check(n, k)
    if not 0 <= c <= n:
        raise ValueError(f"c is {c}, expected the number of right samples: 0 to n ({n}).")
    missed = 1.0
    for i in range(k):
        missed *= max(0, n - c - i) / (n - i)
    return 1.0 - missed


def maj_at_k(right: Sequence[int], wrong: Sequence[int], k: int, silent: int = 0) -> float:
    """Probability that a vote among ``k`` samples, without replacement, elects a right answer.

    >>> maj_at_k([3], [1], 4), maj_at_k([2], [2], 4)
    (1.0, 0.5)

    ``right`` and ``wrong`` count the samples of each such answer; usually one is right. The expectation over all
    subsets of k samples is exact; in a tie every leader wins with the same probability. The ``silent`` samples without
    an answer do not vote, and a vote without voters elects no answer.

    Raises:
        ValueError: a count is negative, or there are fewer samples than ``k``.
    """
    if min((*right, *wrong, silent), default=0) < 0:
        raise ValueError(f"counts of answers cannot be negative: right {list(right)}, wrong {list(wrong)}, {silent=}.")
    n = sum(right) + sum(wrong) + silent
    _check(n, k)
    return _maj_at_k(tuple(sorted(right)), tuple(sorted(wrong)), k, silent)


@lru_cache(maxsize=4096)
def _maj_at_k(right: tuple[int, ...], wrong: tuple[int, ...], k: int, silent: int) -> float:
    classes = [size for size in (*right, *wrong) if size]
    n = sum(classes) + silent
    if k == n:
        most = max(classes, default=0)
        leaders = classes.count(most)
        return right.count(most) / leaders if most else 0.0
    # Independent binomial draws of one rate, conditioned on the sum k, are the draw without replacement. At rate k/n
    # the sum is likely, and all terms are positive, so no precision is lost.
    rate = k / n
    total = _binomial(n, k, rate)
    chance = 0.0
    for own in set(right) - {0}:
        rivals = list(classes)
        rivals.remove(own)
        for votes in range(1, min(own, k) + 1):
            ties = _ties(rivals, silent, votes, k - votes, rate)
            share = sum(weight / (1 + tied) for tied, weight in enumerate(ties))
            chance += right.count(own) * _binomial(own, votes, rate) * share / total
    return min(1.0, chance)


def _ties(rivals: Sequence[int], silent: int, votes: int, left: int, rate: float) -> list[float]:
    """Weights, by number of ties, of ``left`` samples over ``rivals`` (at most ``votes`` each) and silent ones."""
    most_ties = left // votes
    table = [[0.0] * (left + 1) for _ in range(most_ties + 1)]  # (rivals that tie, samples spread so far)
    for count in range(min(silent, left) + 1):
        table[0][count] = _binomial(silent, count, rate)
    for size in rivals:
        chances = [_binomial(size, count, rate) for count in range(min(size, votes, left) + 1)]
        extended = [[0.0] * (left + 1) for _ in range(most_ties + 1)]
        for tied, row in enumerate(table):
            for spread, weight in enumerate(row):
                if weight:
                    for count, chance in enumerate(chances[: left - spread + 1]):
                        extended[tied + (count == votes)][spread + count] += weight * chance
        table = extended
    return [row[left] for row in table]


@lru_cache(maxsize=65536)
def _binomial(n: int, count: int, rate: float) -> float:
    choose = lgamma(n + 1) - lgamma(count + 1) - lgamma(n - count + 1)
    return exp(choose + count * log(rate) + (n - count) * log(1 - rate))


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, but it must be between 1 and the number of samples of the question ({n}).")


@dataclass(frozen=True)
class IntervalEstimate:
    """A mean over ``questions`` questions, and its 95% confidence interval."""

    value: float
    low: float
    high: float
    questions: int


def share(values: Sequence[float], samples: float = 1.0) -> IntervalEstimate:
    """Return the mean of one number in [0, 1] for each question, with its interval.

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
    spread = sum((value - mean) ** 2 for value in values) / questions
    trials = questions * max(1.0, samples)
    if spread > 0:
        trials = min(trials, mean * (1 - mean) / (spread / questions))
    middle = (mean + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * sqrt(mean * (1 - mean) / trials + Z * Z / (4 * trials * trials))
    # At 0 and 1, rounding could put the mean itself outside.
    return IntervalEstimate(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)), questions)


def mean(values: Sequence[float]) -> IntervalEstimate:
    """Return the mean of one number for each question, such as a score, with a normal interval.

    >>> mean([0.25, 0.75]).value
    0.5
    """
    questions = _count(values)
    middle = sum(values) / questions
    if questions == 1:
        return IntervalEstimate(middle, float("-inf"), float("inf"), 1)
    spread = sum((value - middle) ** 2 for value in values) / (questions - 1)
    half = Z * sqrt(spread / questions)
    return IntervalEstimate(middle, middle - half, middle + half, questions)


def _count(values: Sequence[float]) -> int:
    if not values:
        raise ValueError("there are no questions to take the mean of.")
    return len(values)

"""Estimates from several samples of each question: exact pass@k and majority@k.

pass@k and majority@k of a question are expectations over all choices of k of its n samples. Chen et al. 2021,
"Evaluating Large Language Models Trained on Code" (arXiv 2107.03374), equation 1; Wang et al. 2022, "Self-Consistency
Improves Chain of Thought Reasoning in Language Models" (arXiv 2203.11171), for the vote.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, lgamma, log


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

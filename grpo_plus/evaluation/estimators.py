"""Estimates from several samples of each question: exact pass@k, and the vote of all samples.

pass@k of a question is the expectation over all choices of k of its n samples. Chen et al. 2021, "Evaluating Large
Language Models Trained on Code" (arXiv 2107.03374), equation 1; Wang et al. 2022, "Self-Consistency Improves Chain of
Thought Reasoning in Language Models" (arXiv 2203.11171), for the vote.
"""

from collections.abc import Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of ``k`` samples is right, taken without replacement from ``n``, of which ``c`` are right.

    >>> pass_at_k(4, 2, 1), pass_at_k(4, 1, 4)
    (0.5, 1.0)

    ``1 - C(n-c, k) / C(n, k)`` is unbiased for the probability under k fresh samples. It is computed as a product of
    factors between 0 and 1, since binomial coefficients overflow.

    Raises:
        ValueError: not ``0 <= c <= n`` and ``1 <= k <= n``.
    """
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, but it must be between 1 and the number of samples of the question ({n}).")
    if not 0 <= c <= n:
        raise ValueError(f"c is {c}, expected the number of right samples: 0 to n ({n}).")
    missed = 1.0
    for i in range(k):
        missed *= max(0, n - c - i) / (n - i)
    return 1.0 - missed


def majority(right: int, wrong: Sequence[int]) -> float:
    """Probability that a vote elects the right answer, from the votes for it and for each wrong one.

    >>> majority(3, [1]), majority(2, [2]), majority(0, [])
    (1.0, 0.5, 0.0)

    In a tie every leader wins with the same probability; a vote without voters elects no answer.
    """
    votes = [right, *wrong]
    most = max(votes)
    return (right == most) / votes.count(most) if most else 0.0

"""pass@k, majority@k and intervals against brute force, exact arithmetic and simulation."""

import math
import random
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.evaluation import maj_at_k, mean, pass_at_k, share


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 9), data=st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


def test_large_counts_keep_their_precision():
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5, rel=1e-9)
    assert pass_at_k(5000, 3, 2000) == pytest.approx(
        float(1 - Fraction(math.comb(4997, 2000), math.comb(5000, 2000))), rel=1e-12
    )
    assert (pass_at_k(5, 0, 5), pass_at_k(5, 1, 5), pass_at_k(5, 5, 1)) == (0.0, 1.0, 1.0)
    # One against one answer of equal size: by symmetry each wins half of the time, ties shared.
    assert maj_at_k([300], [300], 99) == pytest.approx(0.5, abs=1e-10)
    assert maj_at_k([1], [1] * 99, 50) == pytest.approx(1 / 100, rel=1e-9)  # all tie, whoever was drawn
    assert maj_at_k([60], [40], 51) > 0.95
    assert maj_at_k([3], [1, 1], 1) == pytest.approx(pass_at_k(5, 3, 1))


def brute_majority(right, wrong, k, silent):
    pool = [("r", i) for i, m in enumerate(right) for _ in range(m)]
    pool += [("w", i) for i, m in enumerate(wrong) for _ in range(m)] + [None] * silent
    total, count = Fraction(0), 0
    for subset in combinations(pool, k):
        count += 1
        votes = [vote for vote in subset if vote is not None]
        if votes:
            most = max(votes.count(vote) for vote in votes)
            leaders = {vote for vote in votes if votes.count(vote) == most}
            total += Fraction(sum(leader[0] == "r" for leader in leaders), len(leaders))
    return float(total / count)


@settings(max_examples=80, deadline=None)
@given(
    right=st.lists(st.integers(0, 4), max_size=2),
    wrong=st.lists(st.integers(0, 4), max_size=4),
    silent=st.integers(0, 3),
    data=st.data(),
)
def test_majority_is_the_mean_over_all_votes(right, wrong, silent, data):
    n = sum(right) + sum(wrong) + silent
    if n == 0 or n > 12:
        return
    k = data.draw(st.integers(1, n))
    assert maj_at_k(right, wrong, k, silent) == pytest.approx(brute_majority(right, wrong, k, silent), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: pass_at_k(4, 5, 2), "c is 5"),
        (lambda: pass_at_k(4, 2, 5), "k is 5"),
        (lambda: pass_at_k(4, 2, 0), "k is 0"),
        (lambda: maj_at_k([-1], [3], 1), "cannot be negative"),
        (lambda: maj_at_k([1], [2], 4), "k is 4"),
        *((lambda of=of: of([]), "no questions") for of in (share, mean)),
        (lambda: share([0.5, 1.5]), "between 0 and 1"),
    ],
)
def test_impossible_counts_votes_and_shares_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_one_sample_a_question_is_wilson():
    # Wilson's interval of 7 in 10, as tables have it.
    found = share([1.0] * 7 + [0.0] * 3)
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.3968, 0.8922), abs=1e-4)
    for value, ends in ((0.0, (0.0, 0.2775)), (1.0, (0.7225, 1.0))):
        extreme = share([value] * 10)
        assert (extreme.low, extreme.high) == pytest.approx(ends, abs=1e-4)


def test_samples_of_one_question_are_not_taken_for_questions():
    agreeing = share([1.0] * 30 + [0.0] * 30, samples=8)
    assert agreeing == share([1.0] * 30 + [0.0] * 30)
    mixed = share([0.5] * 60, samples=8)
    independent = share([1.0] * 240 + [0.0] * 240)
    assert (mixed.low, mixed.high) == pytest.approx((independent.low, independent.high))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("questions", "n", "shape"),
    [(20, 1, (2, 2)), (60, 4, (0.3, 0.4)), (60, 8, (0.1, 2.0)), (100, 4, (30, 3)), (40, 8, (50, 50))],
)
def test_the_interval_holds_the_truth_as_often_as_it_says(questions, n, shape):
    rng = random.Random(questions * n)
    truth, trials, held = shape[0] / sum(shape), 600, 0
    for _ in range(trials):
        values = []
        for _ in range(questions):
            p = rng.betavariate(*shape)
            values.append(sum(rng.random() < p for _ in range(n)) / n)
        found = share(values, samples=n)
        held += found.low <= truth <= found.high
    # A twentieth of the samples right, nearly all of them of two or three questions: harder than any dataset of use.
    assert (0.88 if shape == (0.1, 2.0) else 0.92) <= held / trials <= 0.99


def test_a_mean_of_differences_has_a_normal_interval():
    found = mean([0.0, 0.5, 1.0, 0.5])
    assert found.value == 0.5
    assert found.high - found.value == pytest.approx(1.959964 * math.sqrt((0.5 / 3) / 4), rel=1e-6)
    assert math.isinf(mean([1.0]).high)

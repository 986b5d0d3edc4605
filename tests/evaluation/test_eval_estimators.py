"""pass@k, majority@k and intervals against brute force, and who votes alike by a verifier's own notion of equality."""

import math
import random
from dataclasses import asdict
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.evaluation.results import EvalSample, Evaluation, majority, pass_at_k, vote_classes
from grpo_verifiers import get_verifier, verifier
from grpo_verifiers.stats import mean, share
from grpo_verifiers.verifying import REGISTRY


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 9), data=st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


def test_large_counts_keep_their_precision():
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5, rel=1e-9)
    exact = 1 - Fraction(math.comb(4997, 2000), math.comb(5000, 2000))
    assert pass_at_k(5000, 3, 2000) == pytest.approx(float(exact), rel=1e-12)
    assert (pass_at_k(5, 0, 5), pass_at_k(5, 1, 5), pass_at_k(5, 5, 1)) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("right", "wrong", "chance"), [(3, [1], 1), (2, [2], 0.5), (1, [1, 1], 1 / 3), (1, [2], 0), (0, [], 0)]
)
def test_a_vote_elects_the_right_answer_where_it_leads(right, wrong, chance):
    assert majority(right, wrong) == pytest.approx(chance)


@pytest.mark.parametrize(("call", "said"), [
    *((lambda of=of: of([]), "no questions") for of in (share, mean)),
    (lambda: share([0.5, 1.5]), "between 0 and 1"),
])  # fmt: skip
def test_impossible_counts_votes_and_shares_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_one_sample_a_question_is_wilson_several_are_not_questions_and_differences_have_a_normal_interval():
    # Wilson's interval of 7 in 10, as tables have it.
    found = share([1.0] * 7 + [0.0] * 3)
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.3968, 0.8922), abs=1e-4)
    for value, ends in ((0.0, (0.0, 0.2775)), (1.0, (0.7225, 1.0))):
        extreme = share([value] * 10)
        assert (extreme.low, extreme.high) == pytest.approx(ends, abs=1e-4)
    found = mean([0.0, 0.5, 1.0, 0.5])
    assert found.value == 0.5
    assert found.high - found.value == pytest.approx(1.959964 * math.sqrt((0.5 / 3) / 4), rel=1e-6)
    assert math.isinf(mean([1.0]).high)
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


def votes(name, texts, answer, **options):
    judge = get_verifier(name, **options)
    return vote_classes(judge, texts, list(map(asdict, judge.verify_batch(None, texts, answer=[answer] * len(texts)))))


def box(text):
    return f"so \\boxed{{{text}}}"


MATHS = [box("\\frac12"), box("0.5"), box("1/3"), box("\\frac{1}{3}"), box("7"), "no idea", box("x=7")]


@pytest.mark.parametrize(("name", "texts", "answer", "expected"), [
    ("math", MATHS, "1/2", [0, 0, 1, 1, 2, -1, 2]),
    ("math", [box("3") + box("4"), box("3"), "\\boxed{3"], "5", [1, 2, -1]),
    ("numeric", ["#### 1,000", "#### 1000.0", "#### 5", "#### 7", "none"], "7", [1, 1, 2, 0, -1]),
    ("choice", ["the answer is B", "(b)", "\\boxed{C}", "A", "A or B"], "A", [1, 1, 2, 0, -1]),
    ("exact", ["cat", " cat", "dog", "cow"], "cow", [1, 1, 2, 0]),
])  # fmt: skip
def test_equal_answers_vote_together_and_one_that_is_not_read_does_not_vote(name, texts, answer, expected):
    assert votes(name, texts, answer) == expected


@pytest.mark.slow
def test_verifiers_without_equal_answers_have_no_vote():
    @verifier("votes_test_length", isolation="inline")
    def length(completion: str, answer: str) -> float:
        return float(len(completion) == len(answer))

    REGISTRY.unregister("votes_test_length")
    assert length.reader is None
    assert get_verifier("code").reader is None


@pytest.fixture
def initials():
    """A verifier of one's own that states the first letter of the last word."""

    @verifier("votes_test_initial", isolation="inline", pure=True, stated=last_initial)
    def initial(completion: str, answer: str, *, ignore_case: bool = False) -> float:
        stated = last_initial(completion, ignore_case=ignore_case)
        return float(stated is not None and stated == (answer.lower() if ignore_case else answer))

    yield initial
    REGISTRY.unregister("votes_test_initial")


def last_initial(completion, *, ignore_case=False):
    letter = completion.split()[-1][0] if completion.strip() else None
    return letter.lower() if letter and ignore_case else letter


def test_a_third_partys_verifier_votes_by_the_answer_that_it_states_and_its_votes_count(initials):
    texts = ["a cat", "the cow", "one dog", "", "a Cow", "an ant"]
    assert votes("votes_test_initial", texts, "a") == [1, 1, 2, -1, 3, 0]
    assert votes("votes_test_initial", texts, "a", ignore_case=True) == [1, 1, 2, -1, 1, 0]
    texts = ["a cat", "an ant", "the ape", "one dog"]
    verdicts = initials.verify_batch(None, texts, answer=["a"] * 4)
    held = [
        EvalSample(
            0, number, "?", text, 2, False, {initials.label: {"score": v.score, "status": v.status, "detail": ""}}
        )
        for number, (text, v) in enumerate(zip(texts, verdicts, strict=True))
    ]
    assert Evaluation.of(held, [initials], [4]).results[initials.label].majorities[4].value == 1.0


def test_without_a_gold_answer_equal_texts_vote_together_and_one_that_cannot_be_read_is_logged_once(caplog):
    @verifier("votes_test_even", isolation="inline", stated=last_initial)
    def few(completion: str) -> float:
        return float(len(completion) < 3)

    REGISTRY.unregister("votes_test_even")
    texts = ["one cat", "a cow", "the dog", "ox", ""]
    assert vote_classes(few, texts, list(map(asdict, few.verify_batch(None, texts)))) == [1, 1, 2, 0, 0]

    def broken(completion):
        return len(completion) if completion else completion[0]

    @verifier("votes_test_broken", isolation="inline", stated=broken)
    def check(completion: str, answer: str) -> float:
        return 0.0

    REGISTRY.unregister("votes_test_broken")
    assert votes(check, ["", "a", "ab"], "c") == [-1, -1, -1]
    assert caplog.text.count("raised IndexError") + caplog.text.count("gave 1") == 1

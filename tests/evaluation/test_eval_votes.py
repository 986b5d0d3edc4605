"""Which samples vote for the same answer, by the verifier's own notion of equality."""

import pytest

from grpo_plus.evaluation.answers import vote_classes
from grpo_plus.evaluation.results import Evaluation, Sample
from grpo_verifiers import get_verifier, verifier
from grpo_verifiers.verifying import REGISTRY


def votes(name, texts, answer, **options):
    judge = get_verifier(name, **options)
    verdicts = judge.verify_batch(None, texts, answer=[answer] * len(texts))
    return vote_classes(judge, judge.reader, texts, verdicts)


def box(text):
    return f"so \\boxed{{{text}}}"


def test_equal_answers_vote_together_and_one_that_is_not_read_does_not_vote():
    texts = [box("\\frac12"), box("0.5"), box("1/3"), box("\\frac{1}{3}"), box("7"), "no idea", box("x=7")]
    assert votes("math", texts, "1/2") == [0, 0, 1, 1, 2, -1, 2]
    assert votes("math", [box("3") + box("4"), box("3"), "\\boxed{3"], "5") == [-1, 1, -1]


@pytest.mark.parametrize(
    ("name", "texts", "answer", "expected"),
    [
        ("numeric", ["#### 1,000", "#### 1000.0", "#### 5", "#### 7", "none"], "7", [1, 1, 2, 0, -1]),
        ("choice", ["the answer is B", "(b)", "\\boxed{C}", "A", "A or B"], "A", [1, 1, 2, 0, -1]),
        ("exact", ["cat", " cat", "dog", "cow"], "cow", [1, 1, 2, 0]),
    ],
)
def test_other_verifiers_that_compare_answers(name, texts, answer, expected):
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


@pytest.mark.usefixtures("initials")
def test_a_third_partys_verifier_votes_by_the_answer_that_it_states():
    texts = ["a cat", "the cow", "one dog", "", "a Cow", "an ant"]
    assert votes("votes_test_initial", texts, "a") == [1, 1, 2, -1, 3, 0]
    assert votes("votes_test_initial", texts, "a", ignore_case=True) == [1, 1, 2, -1, 1, 0]


def test_without_a_gold_answer_equal_texts_vote_together():

    @verifier("votes_test_even", isolation="inline", stated=last_initial)
    def few(completion: str) -> float:
        return float(len(completion) < 3)

    REGISTRY.unregister("votes_test_even")
    texts = ["one cat", "a cow", "the dog", "ox", ""]
    verdicts = few.verify_batch(None, texts)
    assert vote_classes(few, few.reader, texts, verdicts) == [1, 1, 2, 0, 0]


def test_majority_counts_the_votes_of_a_third_partys_verifier(initials):
    texts = ["a cat", "an ant", "the ape", "one dog"]
    verdicts = initials.verify_batch(None, texts, answer=["a"] * 4)
    held = [
        Sample(0, number, "?", text, 2, False, {initials.label: {"score": v.score, "status": v.status, "detail": ""}})
        for number, (text, v) in enumerate(zip(texts, verdicts, strict=True))
    ]
    results = Evaluation.of(held, [initials], [4]).results[initials.label]
    assert results.majorities[4].value == 1.0


def test_a_stated_answer_that_cannot_be_read_is_no_vote_and_logged_once(caplog):
    def broken(completion):
        return len(completion) if completion else completion[0]

    @verifier("votes_test_broken", isolation="inline", stated=broken)
    def check(completion: str, answer: str) -> float:
        return 0.0

    REGISTRY.unregister("votes_test_broken")
    assert votes(check, ["", "a", "ab"], "c") == [-1, -1, -1]
    assert caplog.text.count("raised IndexError") + caplog.text.count("gave 1") == 1

"""Which samples vote for the same answer, by the verifier's own notion of equality."""

import pytest

from grpo_plus.evaluation.answers import vote_classes
from grpo_verifiers import get_verifier, verifier


def votes(name, texts, answer, **options):
    judge = get_verifier(name, **options)
    verdicts = judge.verify_batch(None, texts, answer=[answer] * len(texts))
    return vote_classes(judge, judge.reader, texts, verdicts)


def box(text):
    return f"so \\boxed{{{text}}}"


def test_math_answers_that_are_equal_vote_together():
    texts = [box("\\frac12"), box("0.5"), box("1/3"), box("\\frac{1}{3}"), box("7"), "no idea", box("x=7")]
    assert votes("math", texts, "1/2") == [0, 0, 1, 1, 2, -1, 2]


def test_an_answer_that_the_verifier_refuses_to_read_does_not_vote():
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


def test_verifiers_without_equal_answers_have_no_vote():
    @verifier("votes_test_length", isolation="inline")
    def length(completion: str, answer: str) -> float:
        return float(len(completion) == len(answer))

    from grpo_verifiers.verifying import REGISTRY

    REGISTRY.unregister("votes_test_length")
    assert length.reader is None
    assert get_verifier("code").reader is None

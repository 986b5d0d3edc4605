"""The registered verifier: fast path in this process, the rest in workers, one verdict for both."""

import time

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.math import fast, math

ROWS = [
    ("42", "so \\boxed{42}"),
    ("42", "so \\boxed{41}"),
    ("42", "no answer"),
    ("\\sin 2x", "long text " * 500 + "\\boxed{2\\sin x\\cos x}"),
    ("\\sin 2x", "long text " * 500 + "\\boxed{2\\sin x\\cos y}"),
    ("\\int_0^1 x dx", "\\boxed{\\frac{1}{2}}"),
    ("(-\\infty,2)\\cup(2,\\infty)", "\\boxed{\\mathbb{R}\\setminus\\{2\\}}"),
    ("", "\\boxed{1}"),
]


@pytest.mark.slow
def test_workers_and_the_fast_path_say_what_the_function_says():
    verifier = get_verifier("math", timeout=30)
    completions, golds = [row[1] for row in ROWS], [row[0] for row in ROWS]
    verdicts = verifier.verify_batch([""] * len(ROWS), completions, None, answer=golds)
    assert verdicts == [math(completion, gold) for gold, completion in ROWS]
    assert verdicts[3].status is Status.CORRECT
    assert verdicts[-1].score is None


def test_options_reach_both_paths():
    verifier = get_verifier("math", timeout=30, last_number=True, reduced=False)
    assert verifier.verify("it makes 42", answer="42").score == 1
    assert verifier.verify("\\boxed{\\frac{2}{4}\\sin 2x}", answer="\\sin x\\cos x").score == 1
    with pytest.raises(TypeError, match=r"reduced.*'no'"):
        get_verifier("math", reduced="no")


@pytest.mark.slow
def test_what_only_a_deadline_bounds_is_bounded():
    verifier = get_verifier("math", timeout=1.0)
    gold = "\\int_0^{\\infty} \\frac{\\sin(x^2)\\ln(x^3+1)}{\\sqrt{1+x^4+x^5}} dx"
    started = time.monotonic()
    verdict = verifier.verify("\\boxed{\\frac{\\pi}{7}}", answer=gold)
    assert verdict.status in {Status.TIMEOUT, Status.WRONG}
    assert time.monotonic() - started < 60
    assert verifier.verify("\\boxed{2\\sin x\\cos x}", answer="\\sin 2x").score == 1


def test_an_undecided_long_completion_is_sent_in_short():
    text = "x = 1 and so on. " * 1000 + "\\boxed{2\\sin x\\cos x}"
    shorter = fast(text, "\\sin 2x")
    assert shorter == {"completion": "\\boxed{2\\sin x\\cos x}", "answer": "\\sin 2x"}
    assert math(**shorter) == math(text, "\\sin 2x")

"""Programs that end, close, fall silent or make answers up at any point: what was not seen to pass has not passed."""

import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import get_verifier
from grpo_verifiers.code._results import PASSED, Result, verdict_of

from .programs import TALKER


def _judged(source, tests, scoring="share", **options):
    verifier = get_verifier("code", level="none", highest="process", scoring=scoring, **options)
    return verifier.verify(f"```python\n{source}\n```", tests=tests)


@pytest.mark.parametrize(("failed", "share"), [(["wrong"], 0.5), (["timeout", "unseen"], 1 / 3), ([], 1.0)])
def test_only_a_test_that_passed_counts(failed, share):
    results = [PASSED, *(Result(kind, "x") for kind in failed)]
    assert (verdict_of(results, "share").score, verdict_of(results, "all").score) == (share, float(not failed))
    assert verdict_of([], "all").score == 0


SHAPES = {
    "calls": lambda n: {"function": "f", "args": [n], "expected": n},
    "code": lambda n: {"code": f"assert f({n}) == {n}"},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 4), st.sampled_from(["end", "close", "silent"]), st.booleans(), st.booleans())
def test_a_program_passes_no_test_that_it_did_not_answer(shape, answered, how, reads_on, asked):
    """It answers so many questions rightly, then leaves: before it reads the next question, or after."""
    asked_first = "hear()" if reads_on else "pass"
    source = TALKER + textwrap.dedent(f"""
        say(["loaded"])
        for _ in range({answered}):
            question = hear()
            say([question["id"], ["value", question["args"][1]]])
        {asked_first}
        leave({how!r})
        """)
    if not asked:  # it takes no part of its own: an honest function that leaves while it is called
        source = TALKER + f"def f(n):\n    if n >= {answered}:\n        leave({how!r})\n    return n"
    tests = [SHAPES[shape](n) for n in range(5)]
    verdict = _judged(source, tests, time_limit=0.3)
    assert verdict.score == answered / 5, verdict.detail
    assert _judged(source, tests, scoring="all", time_limit=0.3).score == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.sampled_from(["end", "close", "silent"]), st.sampled_from([0, 0.001, 0.01]))
def test_answers_that_are_written_before_their_questions_are_read_pass_nothing(shape, ahead, how, pause):
    guesses = [["value", 0], ["", ["value", 0]], ["0" * 16, ["value", 0]], ["pass"], ["test", 0, "pass", ""]]
    source = TALKER + textwrap.dedent(f"""
        say(["loaded"])
        time.sleep({pause})
        for at in range({ahead}):
            say({guesses!r}[at % 5])
        leave({how!r})
        """)
    tests = [{**SHAPES[shape](0)} for _ in range(3)]
    verdict = _judged(source, tests, time_limit=0.3)
    assert verdict.score == 0, verdict.detail


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=15, deadline=None)
@given(st.permutations(range(3)))
def test_an_answer_counts_for_the_question_that_it_names_in_turn_only(shape, order):
    """Answers out of turn, or one question's answer given again: the first of them ends the conversation."""
    source = TALKER + textwrap.dedent(f"""
        say(["loaded"])
        seen = []
        for at in range(3):
            seen.append(hear())
            chosen = {list(order)!r}[at]
            if chosen < len(seen):
                say([seen[chosen]["id"], ["value", seen[at]["args"][1]]])
            else:
                say(["x", ["value", 0]])
        leave("end")
        """)
    right = next((at for at in range(3) if order[at] != at), 3)
    verdict = _judged(source, [SHAPES[shape](n) for n in range(3)], time_limit=1.0)
    assert verdict.score == right / 3, verdict.detail


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.binary(max_size=30) | st.just(b"null") | st.just(b"[]") | st.just(b'["loaded"]') | st.just(b"[" * 5000))
def test_bytes_that_are_no_answer_pass_nothing(data):
    source = TALKER + f'say(["loaded"])\nhear()\nsay({data!r})\nleave("end")'
    for shape in SHAPES.values():
        verdict = _judged(source, [shape(0), shape(1)], time_limit=0.5)
        assert verdict.score == 0, verdict.detail


@pytest.mark.parametrize("delay", [0.0002, 0.0005, 0.001])
def test_a_timer_that_ends_an_honest_answerer_passes_what_was_answered(delay):
    source = f"import os, threading\ndef f(n):\n    threading.Timer({delay}, os._exit, (0,)).start()\n    return n == 7"
    tests = [{"code": f"assert f({n}) is {n == 7}"} for n in range(7, 27)]
    for _ in range(5):
        verdict = _judged(source, tests, scoring="all")
        assert verdict.score == 0
        passed = int(verdict.detail.split()[0])
        marks = verdict.detail.partition("[")[2]  # it may end between two tests as well as in one
        assert marks.startswith(("+" * passed + "-?", "+" * passed + "??")), verdict.detail


def test_the_number_of_a_question_is_in_nothing_that_the_program_is_given_before():
    spy = TALKER + textwrap.dedent("""
        import gc, sys
        before = json.dumps([repr(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple))], default=repr)
        say(["loaded"])
        number = hear()["id"]
        say([number, ["value", number in before]])
        leave("end")
        """)
    assert _judged(spy, [{"function": "f", "args": [], "expected": False}]).score == 1

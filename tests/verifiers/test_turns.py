"""Checks that see turns, and the turns of conversations that nobody sampled."""

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.steps.segments import own_text, segment
from grpo_verifiers.turns import Call, Turn, turns_of_messages
from grpo_verifiers.verdict import Status


def call(status="ok", name="calculator"):
    return Call(name, {"expression": "2+2"}, "4", status)


def turns(*calls):
    """A turn for each list of calls, ten characters apart, and one without any at the end."""
    made = [Turn(10 * place, 10 * place + 4, "well", tuple(each)) for place, each in enumerate(calls)]
    return (*made, Turn(10 * len(calls), 10 * len(calls) + 4, "done"))


def judged(name, given, **options):
    return get_verifier(name, **options).verify("done", turns=given)


def scores(verdict):
    return [step.score for step in verdict.steps]


def test_tools_are_used_as_often_as_they_should_be_and_faults_are_the_models_own():
    for options, calls, score in [
        ({}, [[call()]], 1.0), ({}, [], 0.0), ({}, [[call("error")]], 0.0), ({"successful": False}, [[call("error")]], 1.0),
        ({"names": ["python"]}, [[call()]], 0.0), ({"names": ["python"]}, [[call(), call(name="python")]], 1.0), ({"least": 2}, [[call()]], 0.0),
        ({"least": 2}, [[call()], [call()]], 1.0), ({"most": 1}, [[call()], [call()]], 0.0), ({"least": 0, "most": 0}, [], 1.0),
    ]:  # fmt: skip
        assert judged("tool_used", turns(*calls), **options).score == score
    assert scores(judged("tool_used", turns([call()], [call("late")]))) == [1.0, 0.0, None]
    assert scores(judged("tool_valid", turns([call(), call("unknown")], [call("late")]))) == [0.5, 1.0, None]
    assert [(step.start, step.end) for step in judged("tool_valid", turns([call()])).steps] == [(0, 4), (10, 14)]
    kinds = ["ok", "error", "late", "died", "unknown", "bad_arguments"]
    verdict = judged("tool_valid", turns(*([call(kind)] for kind in kinds)))
    assert (verdict.score, scores(verdict)) == (pytest.approx(4 / 6), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, None])
    assert "2 of 6 calls are wrong; calculator" in verdict.detail
    assert judged("tool_valid", turns()).status is Status.NOT_APPLICABLE
    assert judged("tool_valid", turns(), without=0.0).score == 0.0
    with pytest.raises(Exception, match=r"most \(0\) must not be less than least \(1\)"):
        get_verifier("tool_used", most=0)
    given = (Turn(0, 4, "a", reward=1.0), Turn(5, 6, "b"), Turn(9, 12, "c", reward=0.0))
    verdict = judged("turn_reward", given)
    assert (verdict.score, scores(verdict)) == (0.5, [1.0, None, 0.0])
    assert judged("turn_reward", given, aggregate="min").score == 0.0
    assert judged("turn_reward", turns()).status is Status.NOT_APPLICABLE


CHAT = [
    {"role": "assistant", "content": "Let me see.", "tool_calls": [
        {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2+2"}}},
        {"type": "function", "function": {"name": "clock", "arguments": "{broken"}},
    ]},
    {"role": "tool", "name": "calculator", "content": "4"},
    {"role": "tool", "name": "clock", "content": "{'error': 'no JSON'}"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "name": "f", "content": "{'error': 'late'}"},
    {"role": "assistant", "content": "The answer is \\boxed{5}."},
]  # fmt: skip


def test_turns_of_messages_have_calls_and_steps_of_their_own(tmp_path):
    first, second, last = turns_of_messages(CHAT)
    broken = Call("clock", first.calls[1].arguments, "{'error': 'no JSON'}", "bad_arguments")
    assert first.calls == (Call("calculator", {"expression": "2+2"}, "4", "ok"), broken)
    assert (second.calls[0].status, last.text, last.calls) == ("error", "The answer is \\boxed{5}.", ())
    assert (turns_of_messages(""), get_verifier("math").verify(CHAT, answer="5").score) == ((), 1.0)
    assert get_verifier("math").verify(CHAT[:5], answer="4").score == 0.0
    assert get_verifier("math").verify(CHAT[:3], answer="4").score == 0.0
    text, spans = "2+2 = 4<5 = 6\n>so 1 = 1", [(0, 7), (15, 23)]
    assert (segment(text, "turn", spans), segment("  one ", "turn")) == (spans, [(2, 6)])
    own = own_text(text, spans)
    assert (len(own), own.split()) == (len(text), ["2+2", "=", "4", "so", "1", "=", "1"])
    for by in ("newline", "blank_line"):
        assert all(any(a <= start and end <= b for a, b in spans) for start, end in segment(own, by, spans)), by
    made = get_verifier("tool_used")
    for column in ([3], ["two"], [None], [[1, 2]]):
        assert made(prompts=[""], completions=["a"], turns=column) == [0.0]


def seen(completion, turns, messages):
    return (len(turns), len(turns[0].calls), len(messages)) == (3, 2, 7)


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_check_of_ones_own_sees_turns_wherever_it_runs(isolation):
    prompt = [{"role": "user", "content": "2+2?"}]
    assert get_verifier(seen, isolation=isolation).verify(CHAT, prompt=prompt).score == 1.0

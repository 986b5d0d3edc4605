"""Through a real vLLM server: completions of several turns with a tool, and tokens that truncated sampling left."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.engine("vllm")]

GAP = "sampling/sampling_logp_difference/max"
RATIO = "sampling/importance_sampling_ratio/mean"


def logged(run, name):
    return [entry.get(name) for entry in run.state.log_history if "reward" in entry]


def test_a_tool_is_called_and_all_turns_have_the_trainers_log_probabilities(drawn, tool):
    (double, calls), seen = tool, []

    def reward(completions, **_):
        seen.extend(completions)
        return [float(len(messages[-1]["content"])) for messages in completions]

    rows = [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(1, 10)]
    run = drawn(reward, rows, tools=[double], temperature=0.7)
    assert max(logged(run, GAP)) < 1e-4
    assert logged(run, RATIO) == pytest.approx([1.0] * 3, abs=1e-4)
    assert max(logged(run, "rollout/logp_drift_max")) < 1e-4
    assert min(logged(run, "tools/call_frequency")) > 0.5
    asked = [messages for messages in seen if [each["role"] for each in messages] == ["assistant", "tool", "assistant"]]
    assert len(asked) > 24
    assert len(calls) >= len(asked)
    for call, answer, _ in asked:
        (function,) = call["tool_calls"]
        assert answer["content"] == str(2 * function["function"]["arguments"]["x"])


def digits(completions, **_):
    """The first of the numbers that the model makes up: several are likely, so truncated sampling has what to leave."""
    return [float(text[:1]) if text[:1].isdigit() else 0.0 for text in completions]


ASKED = [{"prompt": "U:"}] * 8


@pytest.mark.parametrize("cut", [{"top_p": 0.6}, {"top_k": 5}, {"min_p": 0.3}], ids=lambda cut: next(iter(cut)))
def test_what_truncated_sampling_left_is_what_tokens_are_scored_in(drawn, cut, caplog):
    run = drawn(digits, ASKED, max_completion_length=8, **cut)
    assert max(logged(run, GAP)) < 1e-4
    assert logged(run, RATIO) == pytest.approx([1.0] * 3, abs=1e-4)
    assert max(logged(run, "rollout/logp_drift_max")) < 1e-4
    assert max(filter(None, logged(run, "rollout/outside_support"))) > 1e-3
    assert "allowed tokens are unknown" not in caplog.text


def test_where_more_could_be_drawn_than_the_server_tells_the_run_says_so(drawn, caplog):
    run = drawn(digits, ASKED, max_completion_length=8, top_k=60, max_steps=1)
    assert "vLLM returned 20 log-probabilities per token" in caplog.text
    assert logged(run, "rollout/logp_drift") == [None]

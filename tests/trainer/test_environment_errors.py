"""What an environment fails in is counted and told, and stops a run where it fails everywhere."""

import copy
import logging
from pathlib import Path

import pytest
from datasets import Dataset

from grpo_verifiers.errors import ConfigError, VerifierFailedError

from . import tools_of_tests as own
from .test_calling import LONG, called, turn_of

FILE = Path(own.__file__)
FAILING, DOUBLE, COUNTER = (f"{FILE}:{name}" for name in ("Failing", "double", "Counter"))
SETTINGS = {**LONG, "shuffle_dataset": False}


@pytest.fixture
def given(tool_tokenizer):
    def given(fails, **more):
        rows = [{"prompt": [{"role": "user", "content": f"q{n}"}], "fails": fails[n % len(fails)]} for n in range(4)]
        tokenizer = copy.deepcopy(tool_tokenizer)
        return {"train_dataset": Dataset.from_list(rows), "processing_class": tokenizer, "reward_funcs": None, **more}

    return given


@pytest.fixture(autouse=True)
def calling(say):
    say(lambda prompt, row: ("done" if turn_of(prompt) else called("add", number=1)) + "<|im_end|>")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("state_key", "holds a object, whose text is its address"),
        ("get_turn_reward", "returned inf"),
        ("get_reward", r"returned '1.0' (str)"),
    ],
)
def test_what_fails_in_some_completions_is_counted_and_told_once(build, given, caplog, method, said):
    trainer = build(trainer=given([method, ""]), environment=FAILING, **{**SETTINGS, "max_steps": 2})
    with caplog.at_level(logging.WARNING, logger="grpo_plus"):
        trainer.train()
    told = [record.getMessage() for record in caplog.records if "'Failing' failed" in record.getMessage()]
    assert len(told) == 1
    assert f"failed in {method} in 4 of 8 completions" in told[0]
    assert said in told[0]
    assert [log["tools/environment_errors"] for log in trainer.state.log_history[:2]] == [4.0, 4.0]


@pytest.mark.parametrize("method", ["state_key", "get_reward"])
def test_what_fails_in_all_completions_stops_the_run(trained, given, method):
    with pytest.raises(VerifierFailedError, match=rf"'Failing' failed in {method} for all 8 completions of a batch"):
        trained(trainer=given([method]), environment=FAILING, **SETTINGS)


CALCULATOR = {"tools": ["calculator"]}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"verifiers": ["tool_used"]}, "'tool_used' looks at calls, but nothing can be called: set tools"),
        ({"verifiers": [{"name": "turns_overlong", "kwargs": {"expected": 2, "most": 4}}]}, "'turns_overlong' looks"),
        ({"eval_verifiers": ["tool_valid"]}, "'tool_valid' looks at calls"),
        ({"max_tool_calling_iterations": 3}, "max_tool_calling_iterations is 3, but nothing can be called"),
        (
            {**CALCULATOR, "verifiers": [{"name": "tool_used", "kwargs": {"names": ["calculater"]}}]},
            "'tool_used': unknown tool 'calculater'. Did you mean 'calculator'",
        ),
    ],
)
def test_what_looks_at_calls_needs_something_to_call(build, given, settings, said):
    rewards = [lambda completions, **_: [0.0] * len(completions)]
    with pytest.raises(ConfigError, match=said):
        build(trainer=given([""], reward_funcs=rewards), **{**SETTINGS, **settings})


def test_tools_handed_over_in_python_can_be_called(build, given):
    used = {"name": "tool_used", "kwargs": {"names": ["double"]}}
    build(trainer=given([""], tools=[own.double]), **SETTINGS, verifiers=[used], max_tool_calling_iterations=2)

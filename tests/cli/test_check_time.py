"""`grpo-plus check config.yaml` tells a run's time from what was measured, or says that nothing was."""

import json
import re

import pytest

from grpo_plus.check.time import StepTime, shown

LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4, "advantage": "center"}


def test_a_pace_leaves_out_the_first_step_and_weighs_logs_by_their_steps():
    found = StepTime.of([(1, 100.0), (2, 102.0), (4, 110.0), (5, 111.0)])
    assert found == StepTime(middle=3.0, low=1.0, high=4.0, steps=4)
    assert StepTime.of([(1, 5.0)]) is None
    assert StepTime.of([]) is None
    assert StepTime.of([(0, 0.0), (1, 50.0)]) is None, "which is the first step"
    assert StepTime.of([(3, 9.0), (3, 10.0)]) is None


@pytest.mark.parametrize(("seconds", "text"), [(0.5, "0.50 s"), (119, "119 s"), (7199, "120.0 min"), (90000, "25.0 h")])
def test_times_for_people(seconds, text):
    assert shown(seconds) == text


def test_without_a_run_there_is_no_basis(cli, config):
    out = cli.done("check", config(**LORA), "--only", "memory")
    assert re.search(r"time: no basis \(no earlier run in .*/out\)\. Train with --max_steps 5 --logging_steps 1", out)
    assert "peak" in out


@pytest.mark.slow
def test_an_earlier_run_of_the_same_config_is_a_basis_and_of_another_one_is_none(cli, config, folder):
    path = config(**LORA, max_steps=4)
    cli.done("train", path)
    metrics = folder / "out" / "grpo_plus" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:  # ten seconds a step, whatever this machine needs
        if line.get("kind") == "train":
            line["time"] = 1000.0 + 10 * line["step"]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = cli.done("check", path, "--only", "memory", "--max_steps", "360")
    assert "time: 10 s a step, half of the steps between 10 s and 10 s; of 3 steps of the run in" in out
    assert "60.0 min for 360 steps, between 60.0 min and 60.0 min at the pace of these" in out
    assert "an estimate: completions grow and shrink" in out
    out = cli.done("check", path, "--only", "memory", "--max_completion_length", "16")
    assert "is a different one: max_completion_length was 8, now 16). Train with" in out

"""`grpo-plus check config.yaml` tells a run's time from what was measured."""

import json

import pytest

LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4, "advantage": "center"}


@pytest.mark.slow
def test_an_earlier_run_of_the_same_config_is_a_basis_and_of_another_one_is_none(cli, config, folder):
    path = config(**LORA, max_steps=4)
    assert "time: " not in cli.done("check", path, "--only", "memory")
    cli.done("train", path)
    metrics = folder / "out" / "grpo_plus" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:  # ten seconds a step, whatever this machine needs
        if line.get("kind") == "train":
            line["time"] = 1000.0 + 10 * line["step"]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = cli.done("check", path, "--only", "memory", "--max_steps", "360")
    assert "time: 10 s a step, the median of the run in" in out
    assert "; 1:00:00 for 360 steps" in out
    assert "time: " not in cli.done("check", path, "--only", "memory", "--max_completion_length", "16")

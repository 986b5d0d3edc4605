"""The command of the README with the examples for ZeRO, as a user on CPUs would start it."""

import sys
from pathlib import Path

import pytest

from tests.two_steps import TRAINING, write_data

REWARDS = """
import gc
from accelerate.state import AcceleratorState

def digits(completions, **_):
    state = AcceleratorState()
    engines = sum(type(each).__name__ == "DeepSpeedEngine" for each in gc.get_objects())
    with open("seen", "a") as file:
        file.write(f"{state.distributed_type.value} {state.num_processes} {engines}\\n")
    return [float(sum(letter.isdigit() for letter in text)) for text in completions]
"""

pytestmark = [pytest.mark.slow, pytest.mark.engine("deepspeed")]


@pytest.fixture
def folder(tmp_path, tiny_model):
    write_data(tmp_path, REWARDS)
    (tmp_path / "config.yaml").write_text(TRAINING.format(model=tiny_model, folder=tmp_path))
    return tmp_path


@pytest.mark.parametrize("stage", [2, 3])
def test_the_command_trains_under_deepspeed_on_cpus_too(stage, folder, beside, port, on_cpus):
    accelerate = Path(__file__).parents[3] / f"examples/accelerate/zero{stage}.yaml"
    launch = ["--accelerate_config", accelerate, "--num_processes", "2", "--mixed_precision", "no"]
    command = [sys.executable, "-m", "grpo_plus.cli", "train", "config.yaml", *launch, "--main_process_port", port()]
    with beside(command, folder / "log", 280, cwd=folder, environment=on_cpus):
        pass
    assert set((folder / "seen").read_text().splitlines()) == {"DEEPSPEED 2 1"}
    assert (folder / "out/model.safetensors").is_file()
    assert (folder / "log").read_text().count("{'loss'") == 2

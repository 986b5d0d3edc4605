"""Two ranks under FSDP2 as accelerate makes them from a config file, on a CPU."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RANK = HERE.parents[1] / "rank.py"
CONFIG = HERE.parents[2] / "examples/accelerate/fsdp2.yaml"


@pytest.fixture(scope="session")
def alone(beside):

    def alone(script, *arguments, log, seconds=240):
        return beside([sys.executable, HERE / script, *arguments], log, seconds)

    return alone


@pytest.fixture(scope="session")
def ranks(beside, port):
    """Runs a script of this folder on two ranks, launched with the FSDP2 example and ``flags``."""

    def ranks(script, *arguments, log, flags=(), seconds=240):
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", CONFIG, "--num_processes", "2"]
        launch += ["--mixed_precision", "no", "--main_process_port", port(), *flags]
        environment = {"ACCELERATE_TORCH_DEVICE": "cpu"}
        return beside([*launch, RANK, HERE / script, *arguments], log, seconds, environment=environment)

    return ranks

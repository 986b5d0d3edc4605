"""Two ranks under DeepSpeed as accelerate makes them from the example for ZeRO, on a CPU."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.engines.zero.zero_jobs import alone, under_zero

HERE = Path(__file__).parent
ACCELERATE = HERE.parents[2] / "examples/accelerate"
RANK = HERE.parents[1] / "rank.py"
ON_A_CPU = {"num_processes": 2, "mixed_precision": "no"}
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # ninja, which compiles what DeepSpeed asks for
}


@pytest.fixture(scope="session")
def zero(tmp_path_factory):
    """The example of a stage with two processes and without bf16."""

    def zero(stage, **changes):
        path = tmp_path_factory.mktemp("accelerate") / f"zero{stage}.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load((ACCELERATE / path.name).read_text()) | ON_A_CPU | changes))
        return path

    return zero


@pytest.fixture(scope="session")
def on_cpus(compiled):
    return {**ENVIRONMENT, "TORCH_EXTENSIONS_DIR": str(compiled)}


@pytest.fixture(scope="session")
def launched(beside, port, zero, on_cpus):

    def launched(script, *arguments, log, stage=2, seconds=900):
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", zero(stage)]
        launch += ["--main_process_port", port(), RANK, script, *arguments]
        return beside(launch, log, seconds, environment=on_cpus)

    return launched


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny_model, beside, launched):
    """The folders with what one process and two ranks gave, all of which was trained beforehand."""
    folder = tmp_path_factory.mktemp("trained")
    single, ranks = folder / "single", folder / "ranks"
    single.mkdir()
    ranks.mkdir()
    script = HERE / "zero_train.py"
    with beside([sys.executable, script, single, tiny_model, json.dumps(alone())], folder / "log of 1", 300):
        pass
    with launched(script, ranks, tiny_model, json.dumps(under_zero()), log=folder / "log of 2"):
        pass
    return single, ranks

"""Two processes, one of them without any work, add up to the gradient of one: under DDP and under FSDP2."""

import json
import sys
from pathlib import Path

import pytest

from grpo_plus.testing import make_tiny_model

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("two_ranks.py")


def test_two_processes_equal_one(tmp_path, beside, two_ranks):
    make_tiny_model(tmp_path / "model")
    with beside([sys.executable, SCRIPT, tmp_path], tmp_path / "log", environment={"ACCELERATE_USE_CPU": "true"}):
        pass
    with two_ranks(SCRIPT, tmp_path, log=tmp_path / "log"):
        pass
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert len(found) == 8
        assert all(distance < 1e-5 for distance in found.values()), (rank, found)

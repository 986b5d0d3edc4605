"""Two processes, one of them without any work, add up to the gradient of one: under DDP and under FSDP2."""

import json
import socket
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("two_ranks.py")


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def finish(command, environment, end_tree):
    """Run a command, of which nothing is left at the end."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=200)
    finally:
        end_tree(process)
    assert process.returncode == 0, output[-6000:]


def test_two_processes_equal_one(tmp_path, clean_environment, end_tree):
    from grpo_plus.testing import make_tiny_model

    make_tiny_model(tmp_path / "model")
    environment = clean_environment | {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    alone = [sys.executable, str(SCRIPT), str(tmp_path)]
    finish(alone, environment, end_tree)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no"]
    launch += ["--dynamo_backend", "no", "--multi_gpu", "--num_processes", "2", "--main_process_port", str(free_port())]
    finish([*launch, *alone[1:]], environment, end_tree)
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert len(found) == 8
        assert all(distance < 1e-5 for distance in found.values()), (rank, found)

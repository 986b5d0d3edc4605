"""Runs a script with the interpreter that has vLLM, in a process of its own: an engine is never quite given back."""

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def colocated(vllm_python, clean_environment, port):

    def colocated(script, *arguments, folder, seconds=600):
        (folder / "tmp").mkdir()
        root = Path(__file__).parents[3]
        ours = {"PYTHONPATH": os.pathsep.join([str(root), str(root / "verifiers"), os.environ.get("PYTHONPATH", "")])}
        ours |= {"TMPDIR": str(folder / "tmp"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())}
        ours |= {"CUDA_VISIBLE_DEVICES": ""}
        words = [vllm_python, Path(__file__).with_name(script), *arguments, folder]
        options = {"env": clean_environment | ours, "capture_output": True, "text": True, "timeout": seconds}
        done = subprocess.run(words, check=False, **options)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return json.loads((folder / "found.json").read_text())

    return colocated

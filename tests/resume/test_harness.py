"""The harness that kills runs: what it forks is what a fresh process trains, and it sees what differs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.resume.compare import difference

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
from pathlib import Path
from benchmarks.resume import __main__, runs
from benchmarks.resume.scenarios import SCENARIOS, make_model
from benchmarks.resume.watch import train
folder, scenario = Path(sys.argv[1]), SCENARIOS["steps"]
if not (folder / "model").exists():
    make_model(scenario, folder / "model")
if sys.argv[2] == "forked":
    runs.warm()
    assert runs.run(scenario, folder / "model", folder / "forked") is None
else:
    (folder / "fresh").mkdir()
    train(scenario, folder / "fresh", folder / "model", None, stock=False, rank=0)
"""


@pytest.mark.nightly
def test_a_forked_run_is_that_of_a_fresh_process(clean_environment, tmp_path):
    for kind in ("forked", "fresh"):
        given = [sys.executable, "-c", ALONE, tmp_path, kind]
        subprocess.run(given, cwd=ROOT, env=clean_environment, check=True, capture_output=True, timeout=120)
    assert difference(tmp_path / "fresh", tmp_path / "forked", 1) is None


@pytest.mark.nightly
def test_stock_trl_starts_another_generation_batch_and_the_harness_sees_it(clean_environment, tmp_path):
    command = [sys.executable, "-m", "benchmarks.resume", "--rows", "steps", "--columns", "stock", "--micro", "3"]
    options = {"cwd": ROOT, "env": clean_environment, "capture_output": True, "text": True, "timeout": 280}
    done = subprocess.run([*command, "--json", tmp_path / "found.json"], check=False, **options)
    assert done.returncode == 0, done.stderr
    found = {place: problem for _, _, place, problem in json.loads((tmp_path / "found.json").read_text())}
    assert found.keys() == {"micro 3", "micro 7", "micro 11"}
    for problem in found.values():  # each saved in the middle of a generation batch: after steps 1, 3 and 5
        assert problem.startswith("additional prompts"), found

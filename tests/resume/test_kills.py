"""Runs that are killed and resumed end as the uninterrupted run, and the harness that kills them sees what differs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.resume.compare import difference
from benchmarks.resume.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
ROWS = {
    "data": ["plain", "epochs", "stream", "logging", "warmup"],
    "evaluations": ["evaluation", "evaluation_epoch", "one_kept"],
    "batches": ["steps", "steps_odd", "dropout", "hook"],
    "iterations": ["iterations", "stop", "packed", "engine_stock"],
    "references": ["refresh", "refresh_mixed", "lora", "lora_refresh"],
    "parts": ["adaptive", "entropy", "four_bits", "rollout"],
    "rounds": ["resample", "roulette"],
    "processes": ["process", "ranks", "ranks_steps"],
}
PLACES = ["micro", "rollout", "verifiers", "update", "write", "end", "evaluation"]


def killed(rows, environment, *options):
    given = ["--rows", *rows, *options, "--width", str(min(2, os.cpu_count() or 1))]
    command = [sys.executable, "-m", "benchmarks.resume", *given]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_a_run_killed_inside_a_generation_batch_ends_as_the_uninterrupted_one(clean_environment):
    assert "identical (1)" in killed(["steps"], clean_environment, "--columns", "micro", "--micro", "1")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ROWS)
def test_a_killed_run_ends_as_the_uninterrupted_one(kind, clean_environment):
    killed(ROWS[kind], clean_environment, "--each", "2", "--columns", *PLACES)


@pytest.mark.nightly
def test_a_run_that_is_killed_again_and_again_ends_as_the_uninterrupted_one(clean_environment):
    killed(["epochs", "steps_odd"], clean_environment, "--columns", "several")


def test_every_kind_of_run_is_tried():
    assert sorted(row for rows in ROWS.values() for row in rows) == sorted(SCENARIOS)


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

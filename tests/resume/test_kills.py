"""Runs that are killed and resumed end as the uninterrupted run: at a few places of every kind of run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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

"""A lack of memory that is real: a limit on the address space, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.cpu]


@pytest.fixture
def run(tmp_path, clean_environment):
    def run(room):
        command = [sys.executable, Path(__file__).with_name("little.py"), tmp_path / str(room), str(room)]
        done = subprocess.run(command, env=clean_environment, capture_output=True, text=True, check=False, timeout=200)
        lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        return json.loads(lines[0].removeprefix("FOUND ")) if lines else done.stderr[-3000:]

    return run


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is read from /proc and limited by the kernel")
def test_an_update_that_does_not_fit_for_real_goes_through_in_parts(run):
    plenty, little = run(0), run(300)
    assert plenty["retries"] == 0 < little["retries"]
    assert min(plenty["moved"]) > 0
    assert little["moved"] == pytest.approx(plenty["moved"], rel=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is read from /proc and limited by the kernel")
def test_what_cannot_fit_for_real_ends_with_what_to_change(run):
    assert "StepTooLargeError: out of memory" in run(30)

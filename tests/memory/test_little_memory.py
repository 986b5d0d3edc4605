"""A lack of memory that is real: a limit on the address space, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the address space is read from /proc and limited there")
pytestmark = [pytest.mark.cpu, LINUX]


@pytest.fixture
def runs(tmp_path, clean_environment, end_tree):
    """What runs of so much room tell, each in a process of its own, beside one another."""

    def runs(*rooms):
        command = [sys.executable, Path(__file__).with_name("little.py")]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": clean_environment}
        started = [subprocess.Popen([*command, tmp_path / str(room), str(room)], **streams) for room in rooms]
        try:
            for process in started:
                out, errors = process.communicate(timeout=280)
                lines = [line for line in out.splitlines() if line.startswith("FOUND ")]
                yield json.loads(lines[0].removeprefix("FOUND ")) if lines else errors[-3000:]
        finally:
            end_tree(*started)

    return runs


@pytest.mark.nightly
def test_an_update_that_does_not_fit_for_real_goes_through_in_parts_or_ends_with_what_to_change(runs):
    plenty, little, least = runs(0, 300, 30)
    assert plenty["retries"] == 0 < little["retries"]
    assert min(plenty["moved"]) > 0
    assert little["moved"] == pytest.approx(plenty["moved"], rel=1e-4)
    assert "StepTooLargeError: out of memory" in least

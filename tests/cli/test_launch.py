"""What the launcher of several ranks makes of signals and exit codes."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from grpo_plus.cli import _launch

WAITS = """
import time
from grpo_plus.cli._launch import _forward_signals
with _forward_signals():
    print("up", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_launcher_whose_output_nobody_reads_any_more(number):
    words = [sys.executable, "-c", WAITS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.stdout.close()
        process.stderr.close()
        process.send_signal(number)
        assert process.wait(60) == 128 + number


CODES = {
    "all well": ({}, 0),
    "a mistake, and the rank that torch stopped": ({0: -15, 1: 2}, 2),
    "a mistake, and the error of a lost connection": ({0: 1, 1: 2}, 2),
    "a finding of stop_on": ({0: 3, 1: 3}, 3),
    "a model that was not written": ({0: 74, 1: -15}, 74),
    "out of memory": ({0: -9, 1: 1}, 1),
}


@pytest.mark.parametrize(("codes", "expected"), CODES.values(), ids=CODES)
def test_the_exit_code_is_that_of_what_went_wrong(codes, expected, monkeypatch, capsys):
    monkeypatch.setattr(_launch, "_run", lambda _: codes)
    parsed = SimpleNamespace(launch=["--num_processes", "1"], processes=1)
    assert _launch.launch(parsed, ["config.yaml"], "grpo-plus train config.yaml") == expected
    told = "grpo-plus train: of the ranks, 0 was killed by SIGKILL, 1 ended with exit code 1. Resume from the last"
    assert (told in capsys.readouterr().err) == (expected == 1)

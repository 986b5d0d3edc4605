"""The benchmark of the engines measures, and leaves nothing behind."""

import json
import os
import sys

import pytest

from benchmarks import engines
from tests.waiting import comes, gone

LAUNCHER = """
import subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(str(rank.pid))
time.sleep(600)
"""


def test_ranks_end_with_a_launch_that_takes_too_long(tmp_path):
    with pytest.raises(engines.NotRunError, match="did not end within 3 seconds"):
        engines.run([sys.executable, "-c", LAUNCHER, str(tmp_path / "pid")], os.environ, seconds=3)
    pid = int((tmp_path / "pid").read_text())
    assert comes(lambda: gone(pid), 10)


def test_the_exit_code_and_the_errors_of_a_launch_are_given():
    words = [sys.executable, "-c", "import sys; print('much'); sys.exit('ValueError: bad')"]
    assert engines.run(words, os.environ, seconds=60) == (1, "ValueError: bad\n")


@pytest.mark.slow
@pytest.mark.engine("vllm")
def test_pushes_to_a_real_server_are_measured(tmp_path):
    table = tmp_path / "table.json"
    command = [sys.executable, "-m", "benchmarks.engines", "--short", "--only", "push", "--json", str(table)]
    assert engines.run(command, os.environ, seconds=280)[0] == 0
    found = json.loads(table.read_text())["push"]
    assert [name for name, *_ in found] == ["adapter", "all weights by files"]
    assert all(0 < float(figure.removesuffix(" s")) < 60 for _, figure, _ in found)

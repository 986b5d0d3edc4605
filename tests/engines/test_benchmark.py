"""The benchmark of the engines measures, and leaves nothing behind."""

import json
import os
import sys

import pytest

from benchmarks import engines


@pytest.mark.slow
@pytest.mark.engine("vllm")
def test_pushes_to_a_real_server_are_measured(tmp_path):
    table = tmp_path / "table.json"
    command = [sys.executable, "-m", "benchmarks.engines", "--short", "--only", "push", "--json", str(table)]
    assert engines.run(command, os.environ, seconds=280)[0] == 0
    found = json.loads(table.read_text())["push"]
    assert [name for name, *_ in found] == ["adapter", "all weights by files"]
    assert all(0 < float(figure.removesuffix(" s")) < 60 for _, figure, _ in found)

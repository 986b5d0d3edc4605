"""The examples, and what their runs leave behind."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_plus.record import open_run

EXAMPLES = Path(__file__).parents[2] / "examples"


def pytest_collection_modifyitems(items):
    if EXAMPLES.is_dir():
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="the sources are not here"))


@pytest.fixture(scope="session")
def examples():
    return EXAMPLES


@pytest.fixture
def place(tmp_path, tiny_model, monkeypatch, examples):
    """A working directory with a tiny model's path, and questions with answers under the columns that examples name."""
    rows = [{"prompt": f"{n}+1=", "question": f"{n}+1=", "answer": str(n + 1)} for n in range(16)]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return SimpleNamespace(folder=tmp_path, out=tmp_path / "out", data=data, model=tiny_model, examples=examples)


@pytest.fixture
def steps():
    def steps(folder):
        entries = [entry["values"] for entry in open_run(folder).entries if entry["kind"] == "train"]
        return [values for values in entries if "reward" in values]

    return steps

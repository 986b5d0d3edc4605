"""Labelled cases that are no part of the repository; tests that need them skip where they are absent."""

import json
import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "cases"


@pytest.fixture(scope="session")
def cases():
    """Rows of a file of cases: from the folder GRPO_PLUS_CASES names, else from shared/cases beside the repository."""
    folder = Path(os.environ.get("GRPO_PLUS_CASES") or _BESIDE)

    def rows(name):
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no {name} in {folder}: set GRPO_PLUS_CASES to a folder that has it")
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    return rows

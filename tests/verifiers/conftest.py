"""Labelled cases: those in tests/cases, and those that are no part of the repository and are skipped where absent."""

import json
import os
from pathlib import Path

import pytest

_OURS = Path(__file__).resolve().parents[1] / "cases"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "cases"
_VARIABLE = "GRPO_PLUS_CASES"


def _text(value):
    """The text of a field: itself, or its parts; a long text repeats a part, or numbers it from a start to a stop."""
    if isinstance(value, str):
        return value
    return "".join(_part(*part) if isinstance(part, list) else part for part in value)


def _part(text, *numbers):
    if len(numbers) == 1:
        return text * numbers[0]
    return "".join(text.replace("#", str(number)) for number in range(*numbers))


def _rows(path):
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [{name: _text(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows]


@pytest.fixture(scope="session")
def cases():
    """Rows of a file in tests/cases."""
    return lambda name: _rows(_OURS / name)


@pytest.fixture(scope="session")
def outside_cases():
    """Rows of a file that is not ours to ship: in the folder GRPO_PLUS_CASES names, else in ../shared/cases."""
    folder = Path(os.environ.get(_VARIABLE) or _BESIDE)

    def rows(name):
        path = folder / name
        if path.is_file():
            return _rows(path)
        if os.environ.get(_VARIABLE):
            pytest.fail(f"{_VARIABLE} names {folder}, which has no {name}", pytrace=False)
        pytest.skip(f"{name} is no part of the repository: set {_VARIABLE} to a folder that has it")

    return rows

"""Labelled hostile programs that are no part of the repository, and the levels that this machine offers."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from grpo_verifiers.code import probe
from grpo_verifiers.code._pool import close_pool

_BESIDE = Path(__file__).resolve().parents[4] / "shared" / "cases"


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


@pytest.fixture(scope="module", params=["full", "process"])
def level(request):
    """Each level that confines; one that this machine does not offer is skipped, or fails where all is required."""
    details = probe().details[request.param]
    if not details.startswith("works"):
        reason = f"level {request.param!r} {details}"
        if os.environ.get("GRPO_PLUS_REQUIRE_ALL") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="session", autouse=True)
def _own_folder(tmp_path_factory):
    """Private folders of boxes go where a test can count them."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("boxes"))
    yield
    close_pool()
    tempfile.tempdir = before


@pytest.fixture
def fenced():
    """A program as a completion."""
    return lambda source, language="python": f"Here it is:\n```{language}\n{source}\n```\n"

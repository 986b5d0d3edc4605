"""The levels of confinement that this machine offers, and what programs under test need."""

import os
import tempfile

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code import probe
from grpo_verifiers.code.pool import close_pool


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


@pytest.fixture
def judge(level, fenced):
    """The verdict on a program at a level."""

    def judge(source, tests, **options):
        return get_verifier("code", level=level, highest=level, **options).verify(fenced(source), tests=tests)

    return judge

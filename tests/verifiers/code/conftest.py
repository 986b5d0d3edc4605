"""The levels of confinement that this machine offers, and what programs under test need."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from contextlib import closing

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code import probe
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.sandbox.box import Box, BoxKind


def offered(level):
    """Skip a level that this machine lacks; one that is broken fails."""
    found = probe(level)
    if found.level == level:
        return level
    landlock = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0
    tried = ["bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--unshare-net", "unshare", "--user", "--mount", "true"]
    bwrap = shutil.which("bwrap") is not None and subprocess.run(tried, check=False).returncode == 0
    reason = f"level {level!r} {found.details[level]}"
    if os.environ.get("GRPO_PLUS_REQUIRE_ALL") == "1" or (landlock and (bwrap or level == "process")):
        pytest.fail(reason, pytrace=False)
    return pytest.skip(reason)


def opened(level):
    return closing(Box(BoxKind(level)))


@pytest.fixture(scope="module", params=["full", "process"])
def level(request):
    """Each level that confines."""
    return offered(request.param)


@pytest.fixture(scope="module", params=["full", "process", "none"])
def any_box(request):
    """A box of any level, the one without confinement too: for what every level bounds."""
    with opened(offered(request.param)) as box:
        yield box


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

    def judge(source, tests, text=None, **options):
        made = get_verifier("code", level=level, highest=level, **options)
        return made.verify(fenced(source) if text is None else text, tests=tests)

    return judge

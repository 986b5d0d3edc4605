"""What the tests of the engines share: environments of their own, which `.ci/engines` makes, and a real vLLM server."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from grpo_verifiers.lazy import installed

HOME = Path(os.environ.get("GRPO_PLUS_ENGINES") or Path.home() / ".cache/grpo_plus/engines")


def pytest_runtest_setup(item):
    """Skip what needs an engine that is not there; under GRPO_PLUS_REQUIRE_ALL=1 in .ci/engines that is a failure."""
    for name in [name for marker in item.iter_markers("engine") for name in marker.args]:
        there = (HOME / "vllm/bin/vllm").is_file() if name == "vllm" else installed(name)
        if not there:
            reason = f"needs {name}, which .ci/engines installs and runs this test with"
            if "GRPO_PLUS_ENGINES" in os.environ and os.environ.get("GRPO_PLUS_REQUIRE_ALL") == "1":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


@pytest.fixture(scope="session")
def vllm_python():
    return str(HOME / "vllm/bin/python")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """A folder of this session's own for what DeepSpeed compiles, filled from earlier ones.

    In a folder that is shared, a process killed while it compiles leaves a lock that everybody waits for, for ever.
    """
    kept, own = HOME / "compiled", tmp_path_factory.mktemp("compiled") / "own"
    if kept.is_dir():
        shutil.copytree(kept, own)
    own.mkdir(exist_ok=True)
    yield own
    if not kept.is_dir() and not list(own.rglob("lock")) and list(own.rglob("*.so")):
        coming = kept.with_name(f"compiled.{os.getpid()}")
        shutil.copytree(own, coming)
        with contextlib.suppress(OSError):  # another session was faster
            coming.rename(kept)

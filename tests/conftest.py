"""Shared by all tests: one thread each, no network, a tiny model, and skips that say why."""

import contextlib
import os
import shutil
from pathlib import Path

import psutil
import pytest

# Read when torch, tokenizers and the hub are first imported, which is later than this file.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["WANDB_MODE"] = "disabled"


def pytest_runtest_setup(item):
    """Skip what needs a program that is not there; under GRPO_PLUS_REQUIRE_ALL=1 that is a failure."""
    missing = [
        program
        for marker in item.iter_markers("needs")
        for program in marker.args
        if shutil.which(program) is None and not Path(program).exists()
    ]
    if not missing:
        return
    reason = f"needs {', '.join(missing)}, which this machine does not have"
    if os.environ.get("GRPO_PLUS_REQUIRE_ALL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a tiny model and its tokenizer."""
    from grpo_plus.testing import make_tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder)
    return str(folder)


@pytest.fixture(scope="session")
def end_tree():
    """Ends a process with everything below it; a launcher's ranks are in sessions of their own."""

    def end(process):
        if process.poll() is not None:
            return
        below = psutil.Process(process.pid).children(recursive=True)
        for each in [process, *below]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                each.kill()
        process.wait()

    return end


@pytest.fixture(scope="session")
def clean_environment():
    """Variables for a subprocess: this process's own, without what a test runner adds for itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path_factory):
    """Runs a command in this process, from another folder than the config's; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    def cli(*arguments):
        from grpo_plus.cli import main

        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return code, found.out, found.err

    return cli

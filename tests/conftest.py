"""Shared by all tests: one thread each, no network, a tiny model, and skips that say why."""

import contextlib
import gc
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from grpo_verifiers.redaction import texts
from tests import started
from tests.device import DEVICE, NAME, ON_CPU

# Read when torch, tokenizers and the hub are first imported, which is later than this file.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["WANDB_MODE"] = "disabled"

if NAME == "stand-in":
    from benchmarks.gpu import stand_in

    stand_in.load()

# A shell has its background jobs ignore Ctrl-C, which they hand on: here to processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("patient"), derandomize=True)
settings.load_profile("repeatable" if os.environ.get("GRPO_PLUS_SAME_EXAMPLES") == "1" else "patient")


# Which parameters of a large test are tried today; workers of pytest take over what the first process has set.
os.environ.setdefault(
    "GRPO_PLUS_SEED", "0" if os.environ.get("GRPO_PLUS_SAME_EXAMPLES") == "1" else time.strftime("%Y%m%d")
)
SEED = os.environ["GRPO_PLUS_SEED"]
# With GRPO_PLUS_MINUTES the files come in an order of the day, and what has not begun after so many minutes is skipped.
MINUTES = float(os.environ.get("GRPO_PLUS_MINUTES", "inf"))
BEGIN = time.monotonic()


def pytest_runtest_logreport(report):
    """Name a failed test at once: a run that is cut off prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.__stderr__.write(f"\n{report.when} of {report.nodeid} failed: {report.longreprtext[-2000:]}\n")


def pytest_terminal_summary(terminalreporter):
    """Say which parameters were tried."""
    terminalreporter.write_line(f"The parameters of large tests were drawn with GRPO_PLUS_SEED={SEED}.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than cores: tests of deadlines and of processes wait for a third of their time."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark ranks over gloo as of a CPU, and what ``sample`` leaves out as slow or nightly: the same in every worker."""
    sampled = {}
    for item in items:
        if "two_ranks" in getattr(item, "fixturenames", ()):
            item.add_marker("cpu")
        if (marker := item.get_closest_marker("sample")) is not None:
            sampled.setdefault((item.nodeid.partition("[")[0], *marker.args), []).append(item)
    for (name, fast, *daily), cases in sampled.items():
        spread = {place * len(cases) // fast for place in range(fast)}
        rest = [case for place, case in enumerate(cases) if place not in spread]
        today = set(random.Random(f"{SEED} {name}").sample(rest, min(*daily, len(rest))) if daily else rest)
        for case in rest:
            case.add_marker("slow" if case in today else "nightly")
    for item in items:
        if item.get_closest_marker("nightly") is not None:
            item.add_marker("slow")
    if math.isfinite(MINUTES):
        items.sort(key=lambda item: random.Random(f"{SEED} {item.nodeid.partition('::')[0]}").random())


def pytest_collection_finish():
    """Take what is imported by now out of further garbage collections: each training asks for some, through all of it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """Skip what has no time left, is of another device, or lacks a program (a failure under GRPO_PLUS_REQUIRE_ALL=1)."""
    if time.monotonic() - BEGIN > 60 * MINUTES:
        pytest.skip(f"not begun within GRPO_PLUS_MINUTES={MINUTES:g}")
    if not ON_CPU and item.get_closest_marker("cpu") is not None:
        pytest.skip(f"of a CPU by nature, and GRPO_PLUS_DEVICE is {NAME}")
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """End forks that come back here; forget the secrets of generated examples, any text of the sources: "an integer"."""
    before, process = set(texts._secrets), os.getpid()
    try:
        return (yield)
    finally:
        if os.getpid() != process:  # a child whose test failed would go on with the tests of its parent
            os.write(2, traceback.format_exc().encode())
            os._exit(70)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            texts._secrets.intersection_update(before)


def pytest_runtest_teardown():
    """Take back what a command that ran in this process has set for its own."""
    os.environ.pop("TRANSFORMERS_VERBOSITY", None)
    if not ON_CPU:
        os.environ.pop("ACCELERATE_USE_CPU", None)


@pytest.fixture(scope="session")
def device():
    """The device that tests train on."""
    import torch

    return torch.device(DEVICE, None if ON_CPU else 0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a tiny model and its tokenizer."""
    from grpo_plus.testing import make_tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder)
    return str(folder)


@pytest.fixture(scope="session")
def end_tree():
    """Ends processes with everything below them; a launcher's ranks are in sessions of their own."""

    def end(*processes):
        for process in processes:
            if process.poll() is None:
                for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                        each.kill()
                process.wait()

    return end


@pytest.fixture(scope="session")
def clean_environment():
    """Variables for a subprocess: this process's own, without what a test runner and accelerate add."""
    return started.clean_environment()


@pytest.fixture(scope="session")
def port():
    """Gives a port that nobody listens on."""

    def port():
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            return held.getsockname()[1]

    return port


@pytest.fixture(scope="session")
def beside(clean_environment, end_tree):
    """Runs a command beside the test: when the test has done its own part, it succeeds and leaves nothing behind."""

    @contextlib.contextmanager
    def beside(command, log, seconds=150, start=started.Popen, **options):
        variables = {**clean_environment, "CUDA_VISIBLE_DEVICES": "", **options.pop("environment", {})}
        options |= {"env": variables, "start_new_session": True}
        with log.open("w") as file:
            process = start([str(word) for word in command], stdout=file, stderr=file, **options)
        try:
            yield process
            code = process.wait(timeout=seconds)
        finally:
            end_tree(*getattr(process, "processes", [process]))
        assert code == 0, log.read_text()[-6000:]

    return beside


@pytest.fixture(scope="session")
def two_ranks(beside, port):
    """Runs a script beside the test as two CPU processes of one run."""

    def two_ranks(script, *arguments, log, seconds=240, **options):
        words = [sys.executable, Path(__file__).with_name("rank.py"), script, *arguments]
        return beside(words, log, seconds, partial(started.Ranks, 2, port()), **options)

    return two_ranks


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


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own, of so many bytes."""
    mounted = []

    def small_disk(size):
        place = tmp_path / "disk"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, check=False, timeout=30
        )
        if done.returncode:
            pytest.skip("mounting a small disk needs rights that this user does not have")
        mounted.append(place)
        return place

    yield small_disk
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=False, timeout=30)

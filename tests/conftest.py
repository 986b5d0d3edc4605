"""Shared by all tests: one thread each, no network, a tiny model, and skips that say why."""

import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark ranks over gloo as of a CPU, and as slow what a test's ``sample`` leaves out: the same in every worker."""
    sampled = {}
    for item in items:
        if "two_ranks" in getattr(item, "fixturenames", ()):
            item.add_marker("cpu")
        if (marker := item.get_closest_marker("sample")) is not None:
            sampled.setdefault((item.nodeid.partition("[")[0], marker.args[0]), []).append(item)
    for (_, count), cases in sampled.items():
        fast = {place * len(cases) // count for place in range(count)}
        for place, item in enumerate(cases):
            if place not in fast:
                item.add_marker("slow")


def pytest_collection_finish():
    """Take what is imported by now out of further garbage collections: each training asks for some, through all of it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """Skip what is of another device, or needs a program that is not there (a failure under GRPO_PLUS_REQUIRE_ALL=1)."""
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


def pytest_runtest_teardown():
    """A command that ran in this process has told accelerate to stay on the CPU."""
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
def repeating_model(tmp_path_factory):
    """A folder with a tiny model that was trained to count from 1 to 9, again and again."""
    import torch

    from grpo_plus.testing import make_tiny_model

    folder = tmp_path_factory.mktemp("repeating")
    model, tokenizer = make_tiny_model(hidden=64)
    digits = torch.tensor(tokenizer("123456789", add_special_tokens=False)["input_ids"]).repeat(8)
    batch = torch.stack([digits[start : start + 54] for start in range(9)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
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
    """Variables for a subprocess: this process's own, without what a test runner and accelerate add."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "ACCELERATE_"))
    }


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
    def beside(command, log, seconds=150, **options):
        variables = {**clean_environment, "CUDA_VISIBLE_DEVICES": "", **options.pop("environment", {})}
        with log.open("w") as file:
            process = subprocess.Popen(
                [str(word) for word in command],
                env=variables,
                stdout=file,
                stderr=file,
                start_new_session=True,
                **options,
            )
        try:
            yield process
            code = process.wait(timeout=seconds)
        finally:
            end_tree(process)
        assert code == 0, log.read_text()[-6000:]

    return beside


@pytest.fixture(scope="session")
def two_ranks(beside, port):
    """Runs a script beside the test as two CPU processes of `accelerate launch`."""

    def two_ranks(script, *arguments, log, seconds=240):
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no"]
        launch += ["--dynamo_backend", "no", "--multi_gpu", "--num_processes", "2", "--main_process_port", port()]
        variables = {"ACCELERATE_USE_CPU": "true"}
        rank = Path(__file__).with_name("rank.py")
        return beside([*launch, rank, script, *arguments], log, seconds, environment=variables)

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

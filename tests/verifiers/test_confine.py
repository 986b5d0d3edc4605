"""What workers give up: probed from inside, in workers as the runner starts them."""

import dataclasses
import os
import resource
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.exec.runner import Runner
from grpo_verifiers.exec.spec import make_spec
from grpo_verifiers.sandbox.confine import clean_environment

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="namespaces, Landlock and seccomp are Linux's")


def probe(completion):
    """Try something that a confined worker must not be able to do; 1.0 where it can."""
    try:
        if completion.startswith("connect "):
            _, host, port = completion.split()
            socket.create_connection((host, int(port)), timeout=2).close()
        elif completion == "unix socket":
            socket.socket(socket.AF_UNIX).close()
        elif completion.startswith("write "):
            Path(completion[6:]).write_text("x")
        elif completion.startswith("remove "):
            Path(completion[7:]).unlink()
        elif completion.startswith("truncate "):
            os.truncate(completion[9:], 0)
        elif completion.startswith("signal "):
            os.kill(int(completion[7:]), signal.SIGCONT)
        elif completion == "own folder":
            with tempfile.NamedTemporaryFile("w", delete=False) as file:
                file.write("mine")
            return float(Path(file.name).read_text() == "mine")
        elif completion == "become root again":
            os.setgroups([0])
        elif completion.startswith("environment "):
            return float(completion[12:] in os.environ)
        elif completion == "gpu":
            return float(os.environ.get("CUDA_VISIBLE_DEVICES") != "")
        elif completion == "core":
            filters = int(Path("/proc/self/coredump_filter").read_text(), 16) if sys.platform == "linux" else 0
            return float(resource.getrlimit(resource.RLIMIT_CORE) != (1, 1) or filters != 0)
        elif completion == "threads":
            return float(os.environ.get("OMP_NUM_THREADS") != "1")
    except OSError:
        return 0.0
    return 1.0


def ask(spec, completions):
    with Runner(1) as runner:
        found = runner.submit(spec, [(text, {}, None) for text in completions], 10.0).wait(60)
        return [outcome.verdicts[0].score if outcome.verdicts else outcome for outcome in found], runner.confinement


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@LINUX
def test_workers_of_built_in_checks_are_confined_as_far_as_they_report(tmp_path, server):
    victim = tmp_path / "victim"
    victim.write_text("whole")
    spec = dataclasses.replace(make_spec(probe), confined=True)
    tries = {
        f"connect 127.0.0.1 {server}": "network",
        "unix socket": "seccomp",
        f"write {tmp_path / 'new'}": "files",
        "write /dev/shm/grpo-verifiers-probe": "files",
        f"truncate {victim}": "files",
        f"remove {victim}": "files",
        f"signal {os.getpid()}": "signals",
        "become root again": "privileges",
    }
    found, level = ask(spec, [*tries, "own folder"])
    assert found[-1] == 1.0
    assert set(level) >= {"network", "files", "privileges"}
    version = int(level["files"].split()[1]) if level["files"].startswith("landlock") else 0
    held = {
        "network": level["network"] != "none",
        "seccomp": "seccomp" in level["network"],
        "files": version >= 3,
        "signals": version >= 6,
        "privileges": level["privileges"] != "none",
    }
    for (name, part), score in zip(tries.items(), found, strict=False):
        if held[part]:
            assert score == 0.0, f"{name} got through, though {part} is reported as {level}"
    if held["files"]:
        assert victim.read_text() == "whole"
        assert not (tmp_path / "new").exists()


@LINUX
def test_built_in_checks_run_confined_in_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spec = dataclasses.replace(make_spec(probe), confined=True)
    assert (ask(spec, ["own folder"])[0], list(tmp_path.iterdir())) == ([1.0], [])
    assert get_verifier("math").spec.confined
    assert get_verifier("regex", pattern="x").spec.confined
    assert get_verifier("exact", timeout=1.0).spec.confined
    assert not get_verifier(probe).spec.confined


def test_workers_of_user_checks_have_network_and_files_but_no_tokens_and_no_gpu(tmp_path, server, monkeypatch):
    for name in ("HF_TOKEN", "MY_API_KEY", "AWS_ACCESS_KEY_ID", "WANDB_API_KEY", "DB_PASSWORD", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("HF_HOME", "/somewhere")
    monkeypatch.setenv("GRPO_VERIFIERS_KEEP_ENV", "DB_PASSWORD, OTHER")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    allowed = [f"connect 127.0.0.1 {server}", f"write {tmp_path / 'new'}"]
    allowed += ["environment HF_HOME", "environment OPENAI_API_KEY", "environment DB_PASSWORD"]
    hidden = [f"environment {name}" for name in ("HF_TOKEN", "MY_API_KEY", "AWS_ACCESS_KEY_ID")]
    hidden += ["gpu", "core", "threads"]
    found, level = ask(make_spec(probe, env=["OPENAI_API_KEY"]), [*allowed, *hidden])
    assert (found, level) == ([1.0] * len(allowed) + [0.0] * len(hidden), {})


def test_secrets_are_known_by_their_names_and_the_rest_stays():
    for name in [
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "openai_apikey", "AWS_SECRET_ACCESS_KEY"),
        *("AWS_PROFILE", "GH_PAT", "MY_SECRET", "PGPASSWORD", "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK"),
        *("WANDB_API_KEY", "SENTRY_DSN", "DATABASE_URL"),
    ]:
        assert name not in clean_environment({name: "x"})
        assert clean_environment({name: "x"}, [name])[name] == "x"
    for name in ["PATH", "HOME", "LANG", "HF_HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "KEYBOARD"]:
        assert clean_environment({name: "x"})[name] == "x"

"""Each finding about a machine, where the machine, or an interpreter, really is so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_plus.check import machine
from grpo_plus.check.machine import AcceleratorInfo, box_findings, disk_findings, machine_findings, worker_findings
from grpo_plus.trl.versions import source_file
from tests.check.conftest import Report

ROOT = Path(__file__).parents[2]


def report(findings):
    """Findings as `Report` looks them up."""
    told = [{"code": f.code, "severity": f.severity, "thing": f.thing, "value": f.value} for f in findings]
    return Report(0, {"findings": told}, "")


@pytest.mark.slow
def test_a_machine_without_a_config(check):
    found = check()
    assert found.code == (2 if found.codes("problem") else 0)
    for code in ("installed", "memory", "worker"):
        assert found.one(code)["severity"] == "ok"
    assert "trl" in found.one("installed")["value"]
    assert "answered after" in found.one("worker")["value"]
    disks = {one["thing"] for one in found.data["findings"] if one["code"] == "disk"}
    assert disks <= {"temporary files", "Hugging Face cache"}
    assert found.data["not_checked"] == ["config, data, model and memory: no config file"]


INSTALLED = """
import json
from grpo_plus.check.machine import installed_findings
print(json.dumps([{"code": f.code, "severity": f.severity, "thing": f.thing, "value": f.value} for f in installed_findings()]))
"""


def interpreter(environment, *first, isolated=False, **variables):
    """What check says of the packages of an interpreter with these folders before, or instead of, its own."""
    path = os.pathsep.join(map(str, [*first, ROOT, ROOT / "verifiers"]))
    command = [sys.executable, *(["-S"] if isolated else []), "-c", INSTALLED]
    environment = {**environment, "PYTHONPATH": path, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return Report(0, {"findings": json.loads(done.stdout.splitlines()[-1])}, done.stderr)


def distribution(folder, name, version):
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.nightly
def test_packages_that_are_old_broken_or_refused(tmp_path, clean_environment):
    distribution(tmp_path, "peft", "0.1.0")
    distribution(tmp_path, "trl", "1.15.0")
    distribution(tmp_path, "bitsandbytes", "0.50.0")
    (tmp_path / "bitsandbytes").mkdir()
    (tmp_path / "bitsandbytes/__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object')")
    found = interpreter(clean_environment, tmp_path)
    assert found.one("package-version")["value"] == "0.1.0, required: >=0.17"
    broken = {one["thing"]: one["value"] for one in found.data["findings"] if one["code"] == "package-broken"}
    assert broken["bitsandbytes"] == "OSError: libcudart.so.12: cannot open shared object"
    assert (found.one("trl-unsupported")["value"], found.codes("warning")) == ("1.15.0", set())


@pytest.mark.slow
def test_a_newer_trl_that_changed_a_seam(tmp_path, clean_environment):
    shutil.copytree(source_file("trl", "__init__.py").parent, tmp_path / "trl")
    distribution(tmp_path, "trl", "1.17.0")
    path = tmp_path / "trl/trainer/grpo_trainer.py"
    path.write_text(path.read_text().replace("def _compute_loss(", "def _other_loss(", 1))
    found = interpreter(clean_environment, tmp_path)
    assert found.one("trl-untested")["value"] == "1.17.0"
    assert found.one("trl-seam")["value"] == "1.17.0: the method _compute_loss is gone"


@pytest.mark.slow
def test_a_package_that_is_not_there(tmp_path, clean_environment):
    for folder in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for each in folder.iterdir():
            if not each.name.startswith(("bitsandbytes", "__pycache__")) and not (tmp_path / each.name).exists():
                (tmp_path / each.name).symlink_to(each)
    found = interpreter(clean_environment, tmp_path, isolated=True)
    assert found.one("package-missing") == {
        "code": "package-missing", "severity": "problem", "thing": "bitsandbytes", "value": "not installed, required: >=0.49"
    }  # fmt: skip


def test_cards_by_what_torch_says_of_them(monkeypatch):
    """No card of these kinds is here: the facts are theirs, the findings those of the command."""

    def with_card(*facts):
        monkeypatch.setattr(machine, "cards", lambda: (AcceleratorInfo(*facts),))
        return report(machine_findings())

    big = with_card("NVIDIA H100 80GB HBM3", 80 << 30, 79 << 30)
    assert big.one("device")["value"] == "NVIDIA H100 80GB HBM3, 80.0 GiB, 79.0 GiB free"
    assert big.codes("warning", "problem", "info") == set()
    busy = with_card("NVIDIA L4", 22 << 30, 2 << 30)
    assert busy.one("device-occupied")["value"] == "NVIDIA L4: 2.0 GiB of 22.0 GiB free"


def test_a_driver_whose_cards_torch_cannot_use(tmp_path, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert report(machine_findings()).one("device-none")["severity"] == "info"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = report(machine_findings()).one("device-unusable")
    assert found["severity"] == "problem"
    assert found["value"].endswith("CUDA_VISIBLE_DEVICES=7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert "device-none" in report(machine_findings()).codes()


@pytest.mark.parametrize("names", [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")])  # fmt: skip
def test_the_memory_of_a_container(tmp_path, monkeypatch, names):
    """By the files in which a container's limits stand, of both kinds."""
    for name, size in zip(names, (3 << 30, 2 << 30), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{size}\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert report(machine_findings()).one("memory-low")["value"] == "1.0 GiB of 3.0 GiB available"


@pytest.mark.needs("bwrap")
def test_the_box_of_this_machine_and_that_without_bubblewrap(monkeypatch):
    from grpo_verifiers.code import probe

    assert report(box_findings()).one("box-full")["value"].startswith("full: works")
    monkeypatch.setenv("PATH", "/nowhere")
    probe.cache_clear()
    try:
        found = report(box_findings()).one("box-process")
        assert "full: does not work: bubblewrap is not installed" in found["value"]
        assert "process: works" in found["value"]
    finally:
        probe.cache_clear()


WITHOUT_LANDLOCK = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
# Load the number of the call; 444 (landlock_create_ruleset) is answered with ENOSYS, as by a kernel without it.
def line(op, yes, no, value):
    return op | yes << 16 | no << 24 | value << 32
lines = (ctypes.c_uint64 * 4)(line(0x20, 0, 0, 0), line(0x15, 0, 1, 444), line(6, 0, 0, 0x00050000 | 38), line(6, 0, 0, 0x7FFF0000))
program = Program(4, ctypes.cast(lines, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
os.environ["PATH"] = "/nowhere"
from grpo_plus.check.machine import box_findings
print(json.dumps([{"code": f.code, "severity": f.severity, "value": f.value} for f in box_findings()]))
"""


@pytest.mark.slow
def test_a_kernel_that_confines_nothing(clean_environment):
    command = [sys.executable, "-c", WITHOUT_LANDLOCK]
    done = subprocess.run(command, env=clean_environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["code"], found["severity"]) == ("box-none", "warning")
    assert "no Landlock" in found["value"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("GRPO_VERIFIERS_WORKERS", "many", "'many', expected an integer"), ("GRPO_VERIFIERS_MEMORY", "0.02", "")],
)
def test_a_worker_that_cannot_be_started(monkeypatch, variable, value, words):
    from grpo_verifiers.exec.runner import close_shared_runners

    close_shared_runners()
    assert report(worker_findings()).one("worker")["severity"] == "ok"
    monkeypatch.setenv(variable, value)
    found = report(worker_findings()).one("worker-fails")
    assert (found["severity"], words in found["value"]) == ("problem", True)


def test_folders_that_can_be_written_or_not(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file/home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    found = report(disk_findings(str(tmp_path / "file/out")))
    assert found.codes() == {"output-unwritable", "temp-unwritable", "cache-unwritable"}
    assert found.one("output-unwritable")["value"].endswith(f"{tmp_path}/file is no folder")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "new/home"))
    assert not report(disk_findings(str(tmp_path / "a/b/out"))).codes("problem")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]  # the trial left nothing


def test_a_small_disk_a_full_one_and_one_that_is_read_only(small_disk, monkeypatch):
    place = small_disk("1m")
    found = report(disk_findings(str(place / "out")))
    low = {one["thing"]: one["value"] for one in found.data["findings"] if one["code"] == "disk-low"}
    assert low["output_dir"].endswith("1.0 MiB free")
    (place / "filler").write_bytes(bytes(1 << 20))
    assert "No space left" in report(disk_findings(str(place / "out"))).one("output-unwritable")["value"]
    subprocess.run(["mount", "-o", "remount,ro", place], check=True, timeout=30)
    monkeypatch.setenv("HF_HOME", str(place))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert "Read-only" in report(disk_findings()).one("cache-unwritable")["value"]

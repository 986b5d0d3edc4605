"""Each finding about a machine, where the machine, or an interpreter, really is so."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_plus import _trl
from grpo_plus.doctor.checks.boxes import box_findings, worker_findings
from grpo_plus.doctor.checks.disk import disk_findings
from grpo_plus.doctor.checks.hub import hub_findings
from grpo_plus.doctor.checks.machine import Card, Machine, machine_findings
from grpo_plus.doctor.checks.plugins import plugin_findings
from grpo_plus.doctor.facts import machine as looking
from grpo_plus.doctor.facts.boxes import boxes, worker
from grpo_plus.doctor.facts.disk import places
from grpo_plus.doctor.facts.machine import machine
from grpo_plus.doctor.facts.plugins import plugins
from tests.doctor.conftest import Report

ROOT = Path(__file__).parents[2]


def report(findings):
    """Findings as `Report` looks them up."""
    told = [{"code": f.code, "severity": f.severity, "thing": f.thing, "value": f.value} for f in findings]
    return Report(0, {"findings": told}, "")


@pytest.mark.slow
def test_a_machine_without_a_config(doctor, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyzABCDEF")
    found = doctor()
    assert found.code == (2 if found.codes("problem") else 0)
    for code in ("installed", "memory", "worker", "plug-ins"):
        assert found.one(code)["severity"] == "ok"
    assert found.one("hub")["value"] == "online, a token is set in the environment"
    assert "trl" in found.one("installed")["value"]
    assert "answered after" in found.one("worker")["value"]
    disks = {one["thing"] for one in found.data["findings"] if one["code"] == "disk"}
    assert disks <= {"temporary files", "Hugging Face cache"}
    assert found.data["not_checked"] == ["model, data and verifiers: no config was given"]


INSTALLED = """
import json
from grpo_plus.doctor.checks.installed import installed_findings
from grpo_plus.doctor.facts.installed import installed
print(json.dumps([{"code": f.code, "severity": f.severity, "thing": f.thing, "value": f.value} for f in installed_findings(installed())]))
"""


def interpreter(environment, *first, isolated=False, **variables):
    """What doctor says of the packages of an interpreter with these folders before, or instead of, its own."""
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
    assert found.one("package-version")["value"] == "0.1.0, wanted >=0.17"
    broken = {one["thing"]: one["value"] for one in found.data["findings"] if one["code"] == "package-broken"}
    assert broken["bitsandbytes"] == "OSError: libcudart.so.12: cannot open shared object"
    assert (found.one("trl-unsupported")["value"], found.codes("warning")) == ("1.15.0", set())
    (tmp_path / "bitsandbytes/__init__.py").write_text("")
    off = interpreter(clean_environment, tmp_path, **{_trl.OVERRIDE: "1"})
    assert off.one("trl-check-off")["value"] == "1.15.0, GRPO_PLUS_ANY_TRL=1"


@pytest.mark.slow
def test_a_newer_trl_that_changed_a_seam(tmp_path, clean_environment):
    shutil.copytree(_trl.source_file("trl", "__init__.py").parent, tmp_path / "trl")
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
        "code": "package-missing", "severity": "problem", "thing": "bitsandbytes", "value": "not installed, wanted >=0.49"
    }  # fmt: skip


SIZES = {"memory": 1 << 34, "available": 1 << 33, "cores": 2, "threads": 2}
CPU = Machine((), driver=False, torch_build="the processor", visible=None, **SIZES)


def with_cards(*cards):
    return report(machine_findings(replace(CPU, cards=cards)))


def test_cards_by_what_torch_says_of_them():
    """No card of these kinds is here: the facts are theirs, the findings those of the command."""
    big = Card("NVIDIA H100 80GB HBM3", 80 << 30, 79 << 30)
    assert with_cards(big).one("device")["value"] == "NVIDIA H100 80GB HBM3, 80.0 GiB, 79.0 GiB free"
    assert with_cards(big).codes("warning", "problem", "info") == set()
    assert with_cards(Card("Tesla T4", 15 << 30, 15 << 30, bf16=False)).one("device-no-bf16")["value"] == "Tesla T4"
    busy = with_cards(Card("NVIDIA L4", 22 << 30, 2 << 30))
    assert busy.one("device-occupied")["value"] == "NVIDIA L4: 2.0 GiB of 22.0 GiB free"


def test_a_driver_whose_cards_torch_cannot_use(tmp_path, monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert report(machine_findings(machine())).one("device-none")["severity"] == "info"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = report(machine_findings(machine())).one("device-unusable")
    assert found["severity"] == "problem"
    assert found["value"].endswith("CUDA_VISIBLE_DEVICES=7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert "device-none" in report(machine_findings(machine())).codes()


@pytest.mark.parametrize("names", [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")])  # fmt: skip
def test_the_memory_and_the_cores_of_a_container(tmp_path, monkeypatch, names):
    """By the files in which a container's limits stand, of both kinds."""
    import torch

    for name, size in zip(names, (3 << 30, 2 << 30), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{size}\n")
    if names[0] == "memory.max":
        (tmp_path / "cpu.max").write_text("50000 100000\n")
    else:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text("50000")
        (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    monkeypatch.setattr(looking, "CGROUP", tmp_path)
    found = report(machine_findings(machine()))
    assert found.one("memory-low")["value"] == "1.0 GiB of 3.0 GiB available"
    assert f"0.5 cores, {torch.get_num_threads()} threads" in [one["value"] for one in found.data["findings"]]


def test_more_threads_than_cores(monkeypatch):
    import torch

    before = torch.get_num_threads()
    assert report(machine_findings(machine())).one("cores")["severity"] == "ok"
    try:
        torch.set_num_threads(2 * len(os.sched_getaffinity(0)) + 1)
        found = report(machine_findings(machine())).one("threads-too-many")
        assert f"{torch.get_num_threads()} threads" in found["value"]
    finally:
        torch.set_num_threads(before)
    assert "x 4096 processes" in report(machine_findings(machine(4096))).one("threads-too-many")["value"]
    monkeypatch.delenv("OMP_NUM_THREADS")  # as torch's launcher then sets it for each of several
    assert (machine(2).threads, machine(2, threads=7).threads) == (1, 7)


@pytest.mark.needs("bwrap")
def test_the_box_of_this_machine_and_that_without_bubblewrap(monkeypatch):
    from grpo_verifiers.code import probe

    assert report(box_findings(boxes())).one("box-full")["value"].startswith("full: works")
    monkeypatch.setenv("PATH", "/nowhere")
    probe.cache_clear()
    try:
        found = report(box_findings(boxes())).one("box-process")
        assert "full: does not start: bubblewrap is not installed" in found["value"]
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
from grpo_plus.doctor.checks.boxes import box_findings
from grpo_plus.doctor.facts.boxes import boxes
print(json.dumps([{"code": f.code, "severity": f.severity, "value": f.value} for f in box_findings(boxes())]))
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
    [("GRPO_VERIFIERS_WORKERS", "many", "'many', expected a whole number"), ("GRPO_VERIFIERS_MEMORY", "0.02", "")],
)
def test_a_worker_that_cannot_be_started(monkeypatch, variable, value, words):
    from grpo_verifiers.exec.runner import close_shared_runners

    close_shared_runners()
    assert report(worker_findings(worker())).one("worker")["severity"] == "ok"
    monkeypatch.setenv(variable, value)
    found = report(worker_findings(worker())).one("worker-fails")
    assert (found["severity"], words in found["value"]) == ("problem", True)


def test_folders_that_can_be_written_or_not(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file/home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    found = report(disk_findings(places(str(tmp_path / "file/out"))))
    assert found.codes() == {"output-unwritable", "temp-unwritable", "cache-unwritable"}
    assert found.one("output-unwritable")["value"].endswith(f"{tmp_path}/file is no folder")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "new/home"))
    assert not report(disk_findings(places(str(tmp_path / "a/b/out")))).codes("problem")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]  # the trial left nothing


def test_a_small_disk_a_full_one_and_one_that_is_read_only(small_disk, monkeypatch):
    place = small_disk("1m")
    found = report(disk_findings(places(str(place / "out"))))
    low = {one["thing"]: one["value"] for one in found.data["findings"] if one["code"] == "disk-low"}
    assert low["output_dir"].endswith("1.0 MiB free")
    (place / "filler").write_bytes(bytes(1 << 20))
    assert "No space left" in report(disk_findings(places(str(place / "out")))).one("output-unwritable")["value"]
    subprocess.run(["mount", "-o", "remount,ro", place], check=True, timeout=30)
    monkeypatch.setenv("HF_HOME", str(place))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert "Read-only" in report(disk_findings(places())).one("cache-unwritable")["value"]


def package(folder, name, points, source):
    distribution(folder, name, "1.0")
    lines = [line for group, entries in points.items() for line in (f"[{group}]", *entries)]
    (folder / f"{name}-1.0.dist-info/entry_points.txt").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.py").write_text(source)


def test_parts_of_packages_that_load_break_or_clash(tmp_path, monkeypatch):
    fine = {"grpo_plus.verifiers": ["finepart = finepart:check"]}
    package(tmp_path, "finepart", fine, "def check(completion): return 1.0\n")
    bad = {"grpo_plus.advantages": ["badpart = badpart:missing"]}
    package(tmp_path, "badpart", bad, "import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = report(plugin_findings(plugins()))
    assert "verifier finepart" in found.one("plug-ins")["value"]
    assert all(words in found.one("plug-in-broken")["value"] for words in ("nothing_of_that_name", "badpart 1.0"))
    package(tmp_path, "rival", {"grpo_plus.verifiers": ["finepart = rival:check"]}, "def check(completion): return 0\n")
    found = report(plugin_findings(plugins()))
    assert "finepart 1.0" in found.one("plug-in-clash")["value"]
    assert found.one("plug-in-clash")["thing"] == "verifier"


@pytest.mark.sample(0)
@pytest.mark.parametrize(("variables", "code", "value"), [
    ({}, "hub", "online, a token is not set in the environment"), ({"HF_HUB_OFFLINE": "1"}, "hub-offline", "HF_HUB_OFFLINE=1"),
    ({"HF_HUB_OFFLINE": "0"}, "hub", "online, a token is not set in the environment"),
    ({"HF_DATASETS_OFFLINE": "1"}, "hub-mixed", "HF_DATASETS_OFFLINE=1"),
    ({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "0"}, "hub-mixed", "HF_HUB_OFFLINE=1, HF_DATASETS_OFFLINE=0"),
    ({"HF_ENDPOINT": "https://mirror.test"}, "hub-endpoint", "HF_ENDPOINT=https://mirror.test"),
])  # fmt: skip
def test_what_is_downloaded_as_the_libraries_themselves_see_it(variables, code, value, clean_environment):
    assert report(hub_findings(variables)).one(code)["value"] == value
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_ENDPOINT")
    environment = {name: text for name, text in clean_environment.items() if name not in names} | variables
    program = "import datasets.config as d, huggingface_hub.constants as h; print(bool(h.HF_HUB_OFFLINE), bool(d.HF_HUB_OFFLINE))"
    options = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, **options)
    models, data = done.stdout.split()
    assert (models != data) is (code == "hub-mixed")
    assert (models == "True") is ("HF_HUB_OFFLINE" in variables and variables["HF_HUB_OFFLINE"] != "0")

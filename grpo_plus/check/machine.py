"""Machine: accelerators, memory, the sandbox of programs, a worker of checks, packages, and folders to write to."""

import importlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from grpo_plus.check.finding import CheckFinding, FindingKind, info, ok, problem, warning
from grpo_plus.checkpoints.disk import free_bytes
from grpo_plus.trl.versions import TESTED, UnsupportedTRLError, is_supported, is_untested, seam_problems
from grpo_verifiers.errors.messages import exact, size_text, type_name

CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Files with the limit and the used bytes of the container, by cgroups v2 and v1."""
GIB = 1 << 30
LOW_MEMORY = 2 * GIB
"""Below this, loading libraries and starting workers may already fail."""
BUSY = 0.7
"""Recommended free share of a card's memory before a run."""

CARD = ok("device", "The accelerator that a run uses.")
NO_CARD = info(
    "device-none",
    "Training runs on the processor: fine for the quickstart, hours a step for models of a billion weights.",
)
UNUSABLE = problem(
    "device-unusable",
    "The machine has an NVIDIA driver, but torch sees no card: training would run on the processor.",
    "Install a torch built for CUDA (pytorch.org, Get started), update the driver, and look at CUDA_VISIBLE_DEVICES.",
)
OCCUPIED = warning(
    "device-occupied",
    "Another process occupies much of the card's memory.",
    "nvidia-smi names the processes: end them, or choose another card with CUDA_VISIBLE_DEVICES.",
)
MEMORY = ok("memory", "Memory of the machine, or of its container.")
LOW = warning(
    "memory-low",
    "Little memory is left: loading a model or starting workers may end the process without a message.",
    "Close other programs, or give the container more.",
)
SECONDS = 120.0
"""Timeout for a worker's answer; a loaded machine starts one slowly."""

FULL = ok("box-full", "Programs of completions run in namespaces of their own: level full.")
PARTIAL = info(
    "box-process",
    "Programs run confined by the kernel's Landlock and seccomp, without namespaces: level process, which verifiers "
    "accept by default.",
    "For level full install bubblewrap (apt install bubblewrap) and allow user namespaces; in a container add "
    "--security-opt seccomp=unconfined.",
)
NONE = warning(
    "box-none",
    "Programs of completions cannot be confined here: the verifier code refuses to run them.",
    "Install bubblewrap, or use Linux 5.13 or newer with Landlock.",
)
WORKER = ok("worker", "A worker process started, and answered.")
WORKER_FAILS = problem(
    "worker-fails",
    "No worker process of the verifiers can be started: every run with a verifier in a process stops.",
    "Read the error; the usual causes are GRPO_VERIFIERS_MEMORY or GRPO_VERIFIERS_WORKERS, a full /tmp, and limits on "
    "processes (ulimit -u).",
)


@dataclass(frozen=True)
class AcceleratorInfo:
    """An accelerator; sizes in bytes, ``free`` None if unknown."""

    name: str
    total: int
    free: int | None = None


def machine_findings() -> Iterator[CheckFinding]:
    """Accelerators and memory."""
    present = cards()
    for card in present:
        free = "" if card.free is None else f", {size_text(card.free)} free"
        yield CARD.at("accelerator", f"{card.name}, {size_text(card.total)}{free}")
        if card.free is not None and card.free < BUSY * card.total:
            yield OCCUPIED.at("accelerator", f"{card.name}: {size_text(card.free)} of {size_text(card.total)} free")
    if not present:
        yield _no_card()
    total, available = memory()
    text = f"{size_text(available)} of {size_text(total)} available"
    yield (LOW if available < LOW_MEMORY else MEMORY).at("memory", text)


def _no_card() -> CheckFinding:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "the processor"
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not driver or visible == "":
        return NO_CARD.at("accelerator", f"none; torch is built for {build}")
    shown = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"
    return UNUSABLE.at("accelerator", f"a driver, no card; torch is built for {build}{shown}")


def cards() -> tuple[AcceleratorInfo, ...]:
    """Return the accelerators visible to torch."""
    import torch

    devices = []
    if torch.cuda.is_available():
        for at in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(at)
            free: int | None = None
            with suppress(RuntimeError):  # a full card has no memory even for this query
                free = torch.cuda.mem_get_info(at)[0]
            devices.append(AcceleratorInfo(about.name, int(about.total_memory), free))
    elif torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        devices.append(AcceleratorInfo(str(getattr(kind, "type", kind)), 0))
    return tuple(devices)


def memory() -> tuple[int, int]:
    """Return total and free bytes of memory, of the container if it has a limit."""
    import psutil  # type: ignore[import-untyped]  # has no types

    machine = psutil.virtual_memory()
    limits = ((_number(CGROUP / most), _number(CGROUP / used)) for most, used in _LIMITS)
    limit, used = next((pair for pair in limits if pair[0] is not None), (None, None))
    if limit is not None and limit < machine.total:
        return limit, min(machine.available, max(0, limit - (used or 0)))
    return machine.total, machine.available


def _number(path: Path) -> int | None:
    """Return the number in a file; None for ``max`` and without a file."""
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def box_findings() -> Iterator[CheckFinding]:
    """Report the reached level of confinement, and why higher ones are not available."""
    from grpo_verifiers.code import probe

    box = probe("full")
    kind = {"full": FULL, "process": PARTIAL}.get(box.level, NONE)
    yield kind.at("sandbox", "; ".join(f"{level}: {report}" for level, report in box.details.items()))


def worker_findings() -> Iterator[CheckFinding]:
    """Start a worker of a built-in check, and request a verdict."""
    from grpo_verifiers import get_verifier
    from grpo_verifiers.exec.runner import close_shared_runners, shared_runner
    from grpo_verifiers.verdict import Status

    start = time.monotonic()
    try:
        verdict = get_verifier("exact", isolation="process", timeout=SECONDS).verify("4", answer="4")
        if verdict.status is not Status.CORRECT:
            yield WORKER_FAILS.at("workers", f"its verdict is {verdict.status.value}: {verdict.detail}")
            return
        seconds = time.monotonic() - start
        limits = ", ".join(f"{name}: {value}" for name, value in getattr(shared_runner(), "confinement", {}).items())
        yield WORKER.at("workers", f"answered after {seconds:.1f} s" + (f" ({limits})" if limits else ""))
    except Exception as error:  # noqa: BLE001 - any failure of a worker is a finding
        yield WORKER_FAILS.at("workers", f"{type(error).__name__}: {error}")
    finally:
        close_shared_runners()


OPTIONAL = ("grpo-plus", "tokenizers", "huggingface-hub", "vllm", "deepspeed", "ray", "flash-attn", "liger-kernel")
IMPORTED = ("torch", "transformers", "datasets", "accelerate", "peft", "bitsandbytes", "trl")
"""Packages to import: their native libraries, or their combination, may be broken."""

INSTALLED = ok("installed", "The versions that a run uses.")
MISSING = problem(
    "package-missing", "A package that every run needs is not installed.", "Install it: pip install NAME."
)
OUTSIDE = problem(
    "package-version",
    "The installed version is outside the range of this release; commands may fail anywhere.",
    "Install a version in the range: pip install 'NAME RANGE'.",
)
BROKEN = problem(
    "package-broken",
    "The package is installed, but importing it fails.",
    "Reinstall it, together with the packages in the error: pip install --force-reinstall NAME.",
)
UNSUPPORTED = problem(
    "trl-unsupported",
    f"This TRL was never tested and does not fit: every command refuses it ({TESTED[0]} to {TESTED[-1]} do).",
    f"pip install 'trl=={TESTED[-1]}'.",
)
UNTESTED = warning(
    "trl-untested",
    "TRL is newer than all tested versions; only its source was checked for the required methods.",
    f"If training behaves oddly: pip install 'trl=={TESTED[-1]}'.",
)
SEAM = problem(
    "trl-seam",
    "A required method or attribute of the trainer is missing or has changed: training fails there.",
    f"pip install 'trl=={TESTED[-1]}', and report this line.",
)


def installed_findings() -> Iterator[CheckFinding]:
    """Yield a line with the version of every package, then a finding for each problem."""
    requirements = [Requirement(text) for text in importlib.metadata.requires("grpo-plus") or ()]
    needed = {each.name: each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})}
    installed = {name: version for name in (*OPTIONAL, *needed) if (version := _version(name)) is not None}
    versions = {"python": platform.python_version(), **installed}
    yield INSTALLED.at("packages", ", ".join(f"{name} {version}" for name, version in versions.items()))
    for name, each in needed.items():
        if name not in installed:
            yield MISSING.at(name, f"not installed, required: {each.specifier or 'any version'}")
        elif name != "trl" and not each.specifier.contains(installed[name], prereleases=True):
            yield OUTSIDE.at(name, f"{installed[name]}, required: {each.specifier}")
    trl = installed.get("trl") if "trl" in needed else None
    if trl is not None:  # before the import: this reads its source
        yield from _of_trl(trl)
    for name in IMPORTED:
        if name in needed and name in installed:
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an import may raise anything
                yield BROKEN.at(name, f"{type_name(type(error))}: {exact(str(error), 400)}")


def _of_trl(version: str) -> Iterator[CheckFinding]:
    if not is_supported(version):
        yield UNSUPPORTED.at("trl", version)
        return
    if is_untested(version):
        yield UNTESTED.at("trl", version)
    try:
        seams = seam_problems()
    except UnsupportedTRLError as error:
        seams = [str(error)]
    for seam in seams:
        yield SEAM.at("trl", f"{version}: {seam}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


TRIAL = 4096
LOW_SPACE = 1 << 30
"""Below this, one checkpoint of a small model, or one download, may not fit."""

SPACE = ok("disk", "The folder can be written, and has room.")
OUTPUT = problem(
    "output-unwritable",
    "The folder for checkpoints and the model is not writable.",
    "Set another output_dir, or make its folder writable.",
)
TEMPORARY = problem(
    "temp-unwritable",
    "No temporary file can be written: workers and sandboxes cannot start.",
    "Free the folder, or set TMPDIR to another one.",
)
CACHE = warning(
    "cache-unwritable",
    "Downloads cannot be stored: models and datasets from the Hub fail to load.",
    "Set HF_HOME to a folder that can be written.",
)
LOW_DISK = warning(
    "disk-low",
    "Less than 1 GiB is free: downloads, temporary files or checkpoints will soon fail.",
    "Free some space, or point output_dir, HF_HOME or TMPDIR elsewhere.",
)


def disk_findings(output_dir: str | None = None) -> Iterator[CheckFinding]:
    """Check the folders of a run's output, of temporary files and of the cache."""
    if output_dir:
        yield _finding("output_dir", Path(output_dir), OUTPUT)
    yield _finding("temporary files", Path(os.environ.get("TMPDIR") or tempfile.gettempdir()), TEMPORARY)
    yield _finding("Hugging Face cache", cache_folder(), CACHE)


def cache_folder() -> Path:
    """Return the folder for downloads from the Hub."""
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _finding(use: str, path: Path, unwritable: FindingKind) -> CheckFinding:
    path = path.absolute()
    free, error = _write_test(path)
    where = f"{path}, {size_text(free)} free"
    if error:
        return unwritable.at(use, f"{where}: {error}")
    return (LOW_DISK if free < LOW_SPACE else SPACE).at(use, where)


def _write_test(path: Path) -> tuple[int, str]:
    """Return the free bytes and any write error of a folder, or of its nearest existing parent."""
    there = path
    while not os.path.lexists(there):
        there = there.parent
    try:
        free = free_bytes(there)
        if not there.is_dir():
            return free, f"{there} is no folder"
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(TRIAL))
            file.flush()
    except OSError as error:
        return free_bytes(there.parent), error.strerror or str(error)
    return free, ""

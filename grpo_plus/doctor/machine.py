"""Machine: accelerators, memory with container limits, the sandbox of programs, and a worker of checks."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo_plus.doctor.finding import CheckFinding, info, ok, problem, warning
from grpo_verifiers.errors.messages import size_text

CGROUP = Path("/sys/fs/cgroup")
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
    "Programs of completions cannot be confined here: the verifiers code and code_steps refuse to run them.",
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
    limit, used = _limits()
    if limit is not None and limit < machine.total:
        return limit, min(machine.available, max(0, limit - (used or 0)))
    return machine.total, machine.available


def _limits() -> tuple[int | None, int | None]:
    """Return the limit and the used bytes of the container, by cgroups v2 or v1."""
    if (limit := _number(CGROUP / "memory.max")) is not None:
        return limit, _number(CGROUP / "memory.current")
    old = CGROUP / "memory"
    return _number(old / "memory.limit_in_bytes"), _number(old / "memory.usage_in_bytes")


def _number(path: Path) -> int | None:
    """Return the number in a file; None for ``max`` and without a file."""
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def box_findings() -> Iterator[CheckFinding]:
    """Report the reached level of confinement, and why higher ones are not available."""
    from grpo_verifiers.code import probe

    box = probe()
    kind = {"full": FULL, "process": PARTIAL}.get(box.level, NONE)
    order = ("full", "process", "none")
    end = order.index(box.level) + 1 if box.level in order else None
    yield kind.at("sandbox", "; ".join(f"{name}: {box.details[name]}" for name in order[:end] if name in box.details))


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

"""Accelerators, memory and cores, with the limits of a container."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from grpo_plus.doctor.checks.machine import Card, Machine

CGROUP = Path("/sys/fs/cgroup")


def machine(processes: int = 1, threads: int | None = None) -> Machine:
    """Look at this machine; a run starts so many processes, and may set their threads."""
    import psutil  # type: ignore[import-untyped]  # has no types
    import torch

    memory = psutil.virtual_memory()
    limit, used = _limits()
    total, available = memory.total, memory.available
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - (used or 0)))
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "the processor"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if threads is None:  # torch's launcher gives each of several processes one, unless told otherwise
        alone = processes == 1 or "OMP_NUM_THREADS" in os.environ
        threads = torch.get_num_threads() if alone else 1
    return Machine(_cards(), driver, build, visible, total, available, cores(), threads, processes)


def cores() -> float:
    """Cores that this process may use: those that it is bound to, or a container's share of them."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        most, every = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return float(bound) if most == "max" else min(float(bound), int(most) / int(every))
    share, period = (_number(CGROUP / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return min(float(bound), share / period) if share and period and share > 0 else float(bound)


def _limits() -> tuple[int | None, int | None]:
    """Most and used bytes of the container, by the second or the first kind of control groups."""
    if (limit := _number(CGROUP / "memory.max")) is not None:
        return limit, _number(CGROUP / "memory.current")
    old = CGROUP / "memory"
    return _number(old / "memory.limit_in_bytes"), _number(old / "memory.usage_in_bytes")


def _number(path: Path) -> int | None:
    """The number in a file; None for ``max`` and where there is no file."""
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def _cards() -> tuple[Card, ...]:
    import torch

    found = []
    if torch.cuda.is_available():
        for at in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(at)
            free: int | None = None
            with suppress(RuntimeError):  # a card that is full has no room even for the question
                free = torch.cuda.mem_get_info(at)[0]
            bf16 = bool(torch.version.hip) or about.major >= 8
            found.append(Card(about.name, int(about.total_memory), free, bf16=bf16))
    elif torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        found.append(Card(str(getattr(kind, "type", kind)), 0))
    return tuple(found)

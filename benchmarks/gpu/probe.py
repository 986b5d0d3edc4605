"""What there is: versions, and the card; `python -m benchmarks.gpu.probe DEVICE FILE` writes it down as JSON."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "transformers", "accelerate", "trl", "peft", "bitsandbytes", "datasets", "mpmath")
OPTIONAL = ("triton",)


def versions() -> dict[str, str]:
    """The versions of what the checks stand on; ``missing`` for what they cannot do without."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none" if name in OPTIONAL else "missing"
    return found


def card() -> dict[str, Any]:
    """Name, memory in GiB, capability and driver of the card; empty without one."""
    import torch

    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info(0)
    own = torch.cuda.memory_reserved(0)
    return {
        "card": torch.cuda.get_device_name(0),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "driver": driver(),
        "total": total / 2**30,
        "free": free / 2**30,
        "taken": (total - free - own) / 2**30,
        "bf16": bool(torch.cuda.is_bf16_supported(including_emulation=False)),
    }


def driver() -> str:
    """The version of the driver, by ``nvidia-smi``; empty where that cannot be had."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else ""


def main() -> int:
    """Write down what there is on a device."""
    device, answer = sys.argv[1:]
    if device == "stand-in":
        from benchmarks.gpu import stand_in

        stand_in.load()
    found: dict[str, Any] = {"versions": versions()}
    if device != "cpu" and found["versions"]["torch"] != "missing":
        found |= card()
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

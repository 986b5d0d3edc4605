"""A stand-in for a CUDA card: tensors say ``cuda:0``, live in main memory, and are computed on by the CPU's kernels.

It raises where a card would: operands on two devices, a generator of the other device, `numpy()` of a tensor on the
card, more memory than the fence allows. Peaks are those of the tensors. It has no kernels of a card, no Triton, no
streams and no speed of one, so it finds misplaced tensors and wrong bookkeeping, and nothing about rounding or time.

`load` has to come before anything imports torch, whose CPU build it needs. It compiles `card.cpp` once (some 20 s with
``g++``) and keeps the library beside the other caches of this user.
"""

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30
MEMORY = int(os.environ.get("GRPO_PLUS_STAND_IN_GIB", "24")) * GIB
"""Memory of the card in bytes."""
NAME = "stand-in card"
SOURCE = Path(__file__).with_name("card.cpp")


class StandInError(RuntimeError):
    """The stand-in cannot be had; the message says why."""


def load() -> None:
    """Put the stand-in in the place of a card, in this process.

    Raises:
        StandInError: torch is imported already, has CUDA, or the library cannot be compiled.
    """
    if getattr(sys.modules.get("torch"), "_stand_in", False):
        return
    if "torch" in sys.modules:
        raise StandInError("the stand-in card has to be loaded before torch is imported.")
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # there is nothing to compile for
    ctypes.CDLL(str(_library()), ctypes.RTLD_GLOBAL)  # its answers come before those of torch's own libraries
    import torch

    if torch.version.cuda is not None:
        raise StandInError(f"the stand-in card needs a CPU build of torch; this one ({torch.__version__}) has CUDA.")
    logging.disable()  # it looks for a kernel of its own on the hub
    import bitsandbytes  # noqa: F401 - takes the kernels of the CPU, which are those that run here

    logging.disable(logging.NOTSET)
    _replace(torch, _extension(_library()))
    import trl.trainer.utils as trl_utils

    # On a card with Triton, TRL scores the valid positions alone.
    if hasattr(trl_utils, "_use_triton"):
        trl_utils._use_triton = lambda device: device.type == "cuda"  # noqa: SLF001 - its kernels stay off
    torch._stand_in = True  # type: ignore[attr-defined]  # noqa: SLF001 - ours


def _library() -> Path:
    """The compiled library, for this source, torch and Python."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise StandInError("torch is not installed.")
    home = Path(found.origin).parent
    version = (home / "version.py").read_bytes()
    key = hashlib.sha256(SOURCE.read_bytes() + version + sys.version.encode() + str(home).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_plus" / "stand_in"
    library = cache / f"{key}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder) / library.name
            include, lib = home / "include", home / "lib"
            command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-DTORCH_API_INCLUDE_EXTENSION_H"]
            command += ["-DTORCH_EXTENSION_NAME=stand_in_card", f"-I{include}"]
            command += [f"-I{include}/torch/csrc/api/include", f"-I{sysconfig.get_path('include')}", str(SOURCE)]
            command += [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
            try:
                done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise StandInError(
                    "the stand-in card is compiled with g++, which this machine does not have."
                ) from None
            if done.returncode:
                raise StandInError(f"the stand-in card does not compile:\n{done.stderr[-3000:]}")
            made.replace(library)
    return library


def _extension(library: Path) -> Any:
    """The library as a Python module."""
    spec = importlib.util.spec_from_file_location("stand_in_card", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Device:
    """`torch.cuda.device`: there is one."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> bool:
        return False


def _replace(torch: Any, card: Any) -> None:
    """The functions of `torch.cuda` that training asks, answered for the stand-in."""
    generator, memory = card.generator(), {"fraction": 1.0}
    card.set_fence(MEMORY)
    properties = SimpleNamespace(
        name=NAME, total_memory=MEMORY, major=9, minor=0, multi_processor_count=1, is_integrated=0, warp_size=32,
        max_threads_per_multi_processor=2048, L2_cache_size=0,
    )  # fmt: skip

    def fraction(share: float, _device: Any = None) -> None:
        memory["fraction"] = share
        card.set_fence(int(share * MEMORY))

    nothing: Any = lambda *_, **__: None  # noqa: E731 - a place to keep short
    torch.cuda.__dict__.update(
        {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": nothing,
            "_lazy_init": nothing,
            "_lazy_call": lambda call, **_: call(),
            "_is_in_bad_fork": lambda: False,
            "device": _Device,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": nothing,
            "synchronize": nothing,
            "ipc_collect": nothing,
            "empty_cache": nothing,
            "is_bf16_supported": lambda *_, **__: True,
            "get_device_name": lambda *_: NAME,
            "get_device_capability": lambda *_: (properties.major, properties.minor),
            "get_device_properties": lambda *_: properties,
            "mem_get_info": lambda *_: (MEMORY - card.allocated(), MEMORY),
            "memory_allocated": lambda *_: card.allocated(),
            "memory_reserved": lambda *_: card.allocated(),
            "max_memory_allocated": lambda *_: card.peak(),
            "max_memory_reserved": lambda *_: card.peak(),
            "memory_stats": lambda *_: {"num_alloc_retries": 0, "num_ooms": 0},
            "reset_peak_memory_stats": lambda *_: card.reset_peak(),
            "reset_max_memory_allocated": lambda *_: card.reset_peak(),
            "set_per_process_memory_fraction": fraction,
            "get_per_process_memory_fraction": lambda *_: memory["fraction"],
            "default_generators": (generator,),
            "get_rng_state": lambda *_: generator.get_state(),
            "set_rng_state": lambda state, *_: generator.set_state(state.cpu()),
            "get_rng_state_all": lambda: [generator.get_state()],
            "set_rng_state_all": lambda states: generator.set_state(states[0].cpu()),
            "manual_seed": lambda seed: generator.manual_seed(int(seed)),
            "manual_seed_all": lambda seed: generator.manual_seed(int(seed)),
            "initial_seed": generator.initial_seed,
        }
    )
    for name in ("_cuda_getDevice", "_cuda_exchangeDevice", "_cuda_maybeExchangeDevice"):
        setattr(torch._C, name, lambda *_: 0)  # noqa: SLF001 - what torch.cuda itself asks
    torch._C._cuda_setDevice = nothing  # noqa: SLF001 - same
    own = torch.storage._StorageBase.to  # noqa: SLF001 - how files are loaded onto a card

    @functools.wraps(own)
    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if torch.device(device).type != "cuda" or self.device.type == "cuda":
            return own(self, device=device, non_blocking=non_blocking)
        made = torch.empty(self.nbytes(), dtype=torch.uint8, device="cuda")
        if self.nbytes():
            made.copy_(torch.empty(0, dtype=torch.uint8).set_(self))
        return made.untyped_storage()

    torch.storage._StorageBase.to = torch.UntypedStorage.to = to  # noqa: SLF001 - same

"""What a run is about to load: said before anything is downloaded, refused where it could not reasonably train."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_verifiers.registry import is_reference

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed

LARGE = 1e9
"""Parameters from which a step on a CPU takes minutes to hours."""
SMALL = "Qwen/Qwen2.5-0.5B-Instruct"
"""What to try a config with on a CPU."""
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)(B|M)(?![A-Za-z0-9])", re.IGNORECASE)
"""The first size in a model's name: ``Qwen3-30B-A3B`` has 30 billion parameters, 3 of them at a time."""


@dataclass(frozen=True)
class Load:
    """A model that will be loaded; ``parameters`` is None where neither its config nor its name tells."""

    name: str
    parameters: float | None
    downloads: bool

    @property
    def size(self) -> str:
        """``about 8 billion parameters, 16 GB in 16 bits``."""
        if self.parameters is None:
            return "of unknown size"
        billions = self.parameters / 1e9
        return f"about {billions:.3g} billion parameters, {2 * billions:.2g} GB in 16 bits"

    def is_slow_here(self) -> bool:
        """A large model, and no accelerator on this machine."""
        import torch

        return (self.parameters or 0) >= LARGE and not torch.accelerator.is_available()


def load_of(name: str) -> Load:
    """Look at a folder, or at a name on the hub and its place in the cache; nothing is downloaded."""
    local = Path(name).expanduser().exists()
    return Load(name, _parameters(name), downloads=not local and not _is_cached(name))


def say_and_check(parsed: "Parsed") -> list[str]:
    """Lines on what is downloaded; `UserError` for what `slow_here` says."""
    load = _of(parsed)
    if told := slow_here(parsed, load):
        raise UserError(told)
    return _download(load)


def slow_here(parsed: "Parsed", load: Load | None = None) -> str:
    """Why train refuses a large model on a CPU that nobody asked for; empty where it does not."""
    load = None if parsed.training.use_cpu else load or _of(parsed)
    if load is None or not load.is_slow_here():
        return ""
    bits = next((f", in {n} bits" for n in (4, 8) if getattr(parsed.model, f"load_in_{n}bit", False)), "")
    text = f"there is no CUDA device here, nor another accelerator, and {load.name} has {load.size}{bits}"
    slow = f"a single step on the CPU would take minutes to hours{', after the download' * load.downloads}"
    small = f"try the config here with a small model (--model_name_or_path {SMALL} --load_in_4bit false)"
    card = "Run this on a machine with a card (grpo-plus plan says how large)"
    return f"{text}: {slow}. {card}, {small}, or ask for the CPU all the same with --use_cpu true."


def load_notes(parsed: "Parsed") -> list[str]:
    """The same as remarks, for commands that load nothing."""
    load = _of(parsed)
    notes = _download(load)
    if load is not None and load.is_slow_here():
        text = f"no CUDA device is on this machine, and {load.name} has {load.size}"
        notes.append(f"{text}: train here asks for --use_cpu true, and would be slow.")
    return notes


def _of(parsed: "Parsed") -> Load | None:
    name = parsed.model.model_name_or_path
    return None if not name or is_reference(name) else load_of(str(name))


def _download(load: Load | None) -> list[str]:
    if load is None or not load.downloads:
        return []
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return [f"{load.name} ({load.size}) is not on this machine, and HF_HUB_OFFLINE forbids its download."]
    from huggingface_hub.constants import HF_HUB_CACHE

    return [f"{load.name} is not on this machine and is downloaded from the hub: {load.size}, into {HF_HUB_CACHE}."]


def _parameters(name: str) -> float | None:
    """By the config, where it is on this machine; else by the name."""
    config = _local_config(name)
    if config is not None:
        from grpo_plus.memory.shape import shape_of

        try:
            shape = shape_of(config, name)
        except ValueError:  # no causal language model
            pass
        else:
            return float(shape.linear_weights + shape.other_weights)
    found = None if Path(name).expanduser().exists() else _SIZE.search(name.rpartition("/")[2])
    return None if found is None else float(found[1]) * (1e9 if found[2] in "bB" else 1e6)


def _local_config(name: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, local_files_only=True)
    except Exception:  # noqa: BLE001 - whatever it is, loading says it
        return None


def _is_cached(name: str) -> bool:
    """Weights of the model are in the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    return any(path.suffix in (".safetensors", ".bin", ".gguf") for path in folder.glob("*/*"))

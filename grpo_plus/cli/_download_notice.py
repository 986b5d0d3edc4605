"""Notice about the model to load, before any download; an error if a step would be unreasonably slow."""

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
"""Model for trying a config on a CPU."""
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)(B|M)(?![A-Za-z0-9])", re.IGNORECASE)
"""The first size in a model's name: ``Qwen3-30B-A3B`` has 30 billion parameters, 3 of them at a time."""


@dataclass(frozen=True)
class ModelLoad:
    """A model to load; ``parameters`` is None if neither its config nor its name has them."""

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
        """Return True for a large model on a machine without an accelerator."""
        import torch

        return (self.parameters or 0) >= LARGE and not torch.accelerator.is_available()


def load_of(name: str) -> ModelLoad:
    """Inspect a folder, or a name on the hub and its place in the cache, without a download."""
    local = Path(name).expanduser().exists()
    return ModelLoad(name, _parameters(name), downloads=not local and not _is_cached(name))


def download_lines(parsed: "Parsed") -> list[str]:
    """Return the lines about downloads; raise `UserError` for the problem of `slow_here`."""
    load = _of(parsed)
    if problem := slow_here(parsed, load):
        raise UserError(problem)
    return _download(load)


def slow_here(parsed: "Parsed", load: ModelLoad | None = None) -> str:
    """Return the error for a large model without an accelerator or an explicit ``use_cpu``; empty if none."""
    load = None if parsed.training.use_cpu else load or _of(parsed)
    if load is None or not load.is_slow_here():
        return ""
    bits = next((f", in {n} bits" for n in (4, 8) if getattr(parsed.model, f"load_in_{n}bit", False)), "")
    text = f"there is no CUDA device here, nor another accelerator, and {load.name} has {load.size}{bits}"
    slow = f"a single step on the CPU would take minutes to hours{', after the download' * load.downloads}"
    small = f"try the config here with a small model (--model_name_or_path {SMALL} --load_in_4bit false)"
    card = "Run this on a machine with a card (grpo-plus plan says how large)"
    return f"{text}: {slow}. {card}, {small}, or force the CPU with --use_cpu true."


def load_notes(parsed: "Parsed") -> list[str]:
    """Return the same as notes, for commands that load nothing."""
    load = _of(parsed)
    notes = _download(load)
    if load is not None and load.is_slow_here():
        text = f"no CUDA device is on this machine, and {load.name} has {load.size}"
        notes.append(f"{text}: train here needs --use_cpu true, and would be slow.")
    return notes


def _of(parsed: "Parsed") -> ModelLoad | None:
    name = parsed.model.model_name_or_path
    return None if not name or is_reference(name) else load_of(str(name))


def _download(load: ModelLoad | None) -> list[str]:
    if load is None or not load.downloads:
        return []
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return [f"{load.name} ({load.size}) is not on this machine, and HF_HUB_OFFLINE forbids its download."]
    from huggingface_hub.constants import HF_HUB_CACHE

    return [f"{load.name} is not on this machine and is downloaded from the hub: {load.size}, into {HF_HUB_CACHE}."]


def _parameters(name: str) -> float | None:
    """Count by the config if it is on this machine, else by the name."""
    config = _local_config(name)
    if config is not None:
        from grpo_plus.memory.shape import shape_of

        try:
            shape = shape_of(config, name)
        except ValueError:  # no causal language model
            pass
        else:
            return float(shape.linear_weights + shape.other_weights)
    match = None if Path(name).expanduser().exists() else _SIZE.search(name.rpartition("/")[2])
    return None if match is None else float(match[1]) * (1e9 if match[2] in "bB" else 1e6)


def _local_config(name: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, local_files_only=True)
    except Exception:  # noqa: BLE001 - loading reports the error
        return None


def _is_cached(name: str) -> bool:
    """Return True if weights of the model are in the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    return any(path.suffix in (".safetensors", ".bin", ".gguf") for path in folder.glob("*/*"))

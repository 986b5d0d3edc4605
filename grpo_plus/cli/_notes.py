"""Notes on a command line, its prompt and its model: thinking, missing formats, downloads, slow steps."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.check.tokens import thinks_by_default
from grpo_plus.cli._prompts import FORMATS
from grpo_plus.recipe.recipe import Recipe, recipe_of
from grpo_plus.recipe.values import changed_fields
from grpo_verifiers.registry import is_reference

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed


ROOM_TO_THINK = 4096
"""Tokens that a thinking model commonly needs for a school mathematics problem."""
_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora", "use_dora")


def adapter_notes(parsed: "Parsed") -> list[str]:
    """Return notes on unused adapter options."""
    unused = [] if parsed.model.use_peft else changed_fields(parsed.model, _OF_ADAPTERS)
    return [f"{name} ({getattr(parsed.model, name)!r}) is not read: use_peft is false." for name in unused]


def prompt_notes(parsed: "Parsed") -> list[str]:
    """Return notes on the prompt before any row is read; the tokenizer is used only if it is on this machine."""
    name = parsed.model.model_name_or_path
    if not name or is_reference(name):
        return []
    return template_notes(parsed.training, parsed.prompt, name, _local("AutoTokenizer", name))


def template_notes(
    config: Any, prompt: Mapping[str, Any], model: str, tokenizer: Any = None, text: str | None = None
) -> list[str]:
    """Return one sentence for each note. ``text`` is a full prompt as the model reads it; None if not known yet."""
    return [*_thinking(config, model, tokenizer), *_missing_tags(recipe_of(config), prompt, text)]


def _local(kind: str, model: str) -> Any:
    """Return the ``AutoConfig`` or ``AutoTokenizer`` if its files are on this machine, else None; no download."""
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(model, local_files_only=True)
    except Exception:  # noqa: BLE001 - training reports the error
        return None


def _thinking(config: Any, model: str, tokenizer: Any) -> list[str]:
    keywords, limit = config.chat_template_kwargs or {}, config.max_completion_length
    has_room = limit is None or limit >= ROOM_TO_THINK
    if has_room or "enable_thinking" in keywords or tokenizer is None or not thinks_by_default(tokenizer):
        return []
    text = f"the chat template of {model} has the model think before it answers, and max_completion_length is {limit}"
    remedy = "chat_template_kwargs: {enable_thinking: false}, or true with a max_completion_length of"
    return [f"{text}: most answers would be cut off. Set {remedy} {ROOM_TO_THINK} or more."]


def _missing_tags(recipe: Recipe, prompt: Mapping[str, Any], text: str | None) -> Iterator[str]:
    template = prompt.get("template")
    instructions = FORMATS[template].text if template else ""
    words = " ".join([str(prompt.get("system", "")), str(prompt.get("user", "")), instructions, text or ""])
    if text is None and not prompt:
        return  # the data's own prompts may have the tags
    for part in recipe.verifiers:
        missing = [tag for tag in _tags(part.verifier.describe()) if tag not in words]
        if part.weight == 0 or not missing:
            continue
        note = f"the verifier {part.label!r} rewards {', '.join(missing)}, but the prompt never asks for it"
        fitting = "think_answer" if "<answer>" in missing else "think_boxed"
        yield f"{note}: name a template with it (prompt: {{template: {fitting}}}), or write it in system."


def _tags(described: Mapping[str, Any]) -> list[str]:
    options = described.get("options") or {}
    if described.get("name") == "think_format":
        names = [options.get("think") or "think", options.get("answer")]
    elif described.get("name") == "tag_count":
        names = list(options.get("tags") or ("think", "answer"))
    else:
        return []
    tags = [f"<{name}>" for name in names if name]
    return tags[1:] if options.get("prefilled") else tags


LARGE = 1e9
"""Parameters from which a step on a CPU takes minutes to hours."""
SMALL = "Qwen/Qwen2.5-0.5B-Instruct"
"""Model for trying a config on a CPU."""
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)(B|M)(?![A-Za-z0-9])", re.IGNORECASE)
"""The first size in a model's name: ``Qwen3-30B-A3B`` has 30 billion parameters, 3 of them at a time."""


def slow_here(parsed: "Parsed") -> str:
    """Return the error for a large model without an accelerator or an explicit ``use_cpu``; empty if none."""
    import torch

    name = _name(parsed)
    if parsed.training.use_cpu or name is None or torch.accelerator.is_available() or parameters(name) < LARGE:
        return ""
    bits = next((f", in {n} bits" for n in (4, 8) if getattr(parsed.model, f"load_in_{n}bit", False)), "")
    text = f"there is no CUDA device here, nor another accelerator, and {name} has {_size(name)}{bits}"
    slow = f"a single step on the CPU would take minutes to hours{', after the download' * downloads(name)}"
    small = f"try the config here with a small model (--model_name_or_path {SMALL} --load_in_4bit false)"
    card = "Run this on a machine with a card (grpo-plus check says how large)"
    return f"{text}: {slow}. {card}, {small}, or force the CPU with --use_cpu true."


def load_notes(parsed: "Parsed") -> list[str]:
    """Return the line about a download, without starting it."""
    name = _name(parsed)
    if name is None or not downloads(name):
        return []
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return [f"{name} ({_size(name)}) is not on this machine, and HF_HUB_OFFLINE forbids its download."]
    return [f"{name} is not on this machine and is downloaded from the hub: {_size(name)}."]


def _name(parsed: "Parsed") -> str | None:
    name = parsed.model.model_name_or_path
    return None if not name or is_reference(name) else str(name)


def _size(name: str) -> str:
    """``about 8 billion parameters, 16 GB in 16 bits``."""
    billions = parameters(name) / 1e9
    return f"about {billions:.3g} billion parameters, {2 * billions:.2g} GB in 16 bits" if billions else "unknown size"


def downloads(name: str) -> bool:
    """Return True for a name on the hub whose weights are not in the cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    cached = any(path.suffix in (".safetensors", ".bin", ".gguf") for path in folder.glob("*/*"))
    return not cached and not Path(name).expanduser().exists()


def parameters(name: str) -> float:
    """Count by the config if it is on this machine, else by the name; 0 if neither has the size."""
    if (config := _local("AutoConfig", name)) is not None:
        from grpo_plus.memory.shape import shape_of

        try:
            shape = shape_of(config, name)
        except ValueError:  # no causal language model
            pass
        else:
            return float(shape.linear_weights + shape.other_weights)
    match = None if Path(name).expanduser().exists() else _SIZE.search(name.rpartition("/")[2])
    return 0.0 if match is None else float(match[1]) * (1e9 if match[2] in "bB" else 1e6)

"""What a folder with a reward model holds, read from its files alone."""

import json
from dataclasses import dataclass
from pathlib import Path

from grpo_verifiers.files import restore_folder

HEADS = {"SEQ_CLS": "outcome", "TOKEN_CLS": "process"}
"""The tasks of PEFT, and what their head scores."""
_CLASSES = {"ForSequenceClassification": "outcome", "ForTokenClassification": "process"}


@dataclass(frozen=True)
class Kind:
    """``on`` is ``adapter`` or ``model``, ``head`` is ``outcome`` or ``process``; the rest is an adapter's."""

    on: str
    head: str
    rank: int = 0
    alpha: float = 0.0
    rslora: bool = False
    base: str = ""


def read_kind(folder: Path) -> Kind:
    """The kind of a folder's reward model."""
    restore_folder(folder)
    if not folder.is_dir():
        raise ValueError("which is no folder")
    try:
        if (folder / "adapter_config.json").is_file():
            told = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            base = str(told.get("base_model_name_or_path") or "")
            scale = float(told["lora_alpha"]), bool(told.get("use_rslora"))
            return Kind("adapter", HEADS[told["task_type"]], int(told["r"]), *scale, base)
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = str((told.get("architectures") or [""])[0])
        return Kind("model", next(head for end, head in _CLASSES.items() if name.endswith(end)))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError):
        raise ValueError(
            "which holds no reward model (adapter_config.json of the task SEQ_CLS or TOKEN_CLS, or config.json of a "
            "model for sequence or token classification)"
        ) from None

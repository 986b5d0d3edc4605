"""The folder of a reward model: its kind, and an atomic write that never replaces foreign files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verifiers.files import folder_lock, replaced_folder, restore_folder

FILE = "grpo_plus_reward_model.json"
"""The training data and the accuracy of the model; a folder with this file may be replaced."""
HEADS = {"SEQ_CLS": "outcome", "TOKEN_CLS": "process"}
"""PEFT's task types and their kinds of heads."""
_CLASSES = {"ForSequenceClassification": "outcome", "ForTokenClassification": "process"}


@dataclass(frozen=True)
class RewardModelKind:
    """The kind of a reward model: ``adapter`` or ``model``, ``outcome`` or ``process``; the rest is of an adapter."""

    on: str
    head: str
    rank: int = 0
    alpha: float = 0.0
    rslora: bool = False
    base: str = ""


def read_kind(folder: Path) -> RewardModelKind:
    """Return the kind of the reward model in a folder."""
    restore_folder(folder)
    if not folder.is_dir():
        raise ValueError("which is no folder")
    try:
        if (folder / "adapter_config.json").is_file():
            config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            base = str(config.get("base_model_name_or_path") or "")
            scale = float(config["lora_alpha"]), bool(config.get("use_rslora"))
            return RewardModelKind("adapter", HEADS[config["task_type"]], int(config["r"]), *scale, base)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = str((config.get("architectures") or [""])[0])
        return RewardModelKind("model", next(head for end, head in _CLASSES.items() if name.endswith(end)))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError):
        raise ValueError(
            "which holds no reward model (adapter_config.json of the task SEQ_CLS or TOKEN_CLS, or config.json of a "
            "model for sequence or token classification)"
        ) from None


def write_problem(folder: Path) -> str | None:
    """Return the reason why a reward model cannot be written to ``folder``; None if it can."""
    restore_folder(folder)
    if not folder.exists():
        return None
    if not folder.is_dir():
        return f"the reward model's folder {folder} is a file."
    if any(folder.iterdir()) and not (folder / FILE).is_file():
        return f"the reward model's folder {folder} holds other files and no reward model of grpo_plus: empty it."
    return None


def write_reward_model(folder: Path, write: Callable[[Path], None], about: Mapping[str, Any]) -> None:
    """Write a draft with ``write`` and move it to ``folder`` atomically.

    Raises:
        FileExistsError: the folder has foreign files.
        OSError: a write failed.
    """
    with folder_lock(folder):
        if problem := write_problem(folder):
            raise FileExistsError(problem)
        with replaced_folder(folder) as draft:
            write(draft)
            (draft / FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

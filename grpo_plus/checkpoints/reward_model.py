"""The folder of a reward model: what it holds, and how it is written: whole, and never over somebody else's files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verifiers.files import folder_lock, replaced_folder, restore_folder

FILE = "grpo_plus_reward_model.json"
"""What the model was trained on and how well it did; its presence says that the folder may be replaced."""
HEADS = {"SEQ_CLS": "outcome", "TOKEN_CLS": "process"}
"""The tasks of PEFT, and what their head scores."""
_CLASSES = {"ForSequenceClassification": "outcome", "ForTokenClassification": "process"}


@dataclass(frozen=True)
class RewardModelKind:
    """``on`` is ``adapter`` or ``model``, ``head`` is ``outcome`` or ``process``; the rest is an adapter's."""

    on: str
    head: str
    rank: int = 0
    alpha: float = 0.0
    rslora: bool = False
    base: str = ""


def read_kind(folder: Path) -> RewardModelKind:
    """The kind of a folder's reward model."""
    restore_folder(folder)
    if not folder.is_dir():
        raise ValueError("which is no folder")
    try:
        if (folder / "adapter_config.json").is_file():
            told = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            base = str(told.get("base_model_name_or_path") or "")
            scale = float(told["lora_alpha"]), bool(told.get("use_rslora"))
            return RewardModelKind("adapter", HEADS[told["task_type"]], int(told["r"]), *scale, base)
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = str((told.get("architectures") or [""])[0])
        return RewardModelKind("model", next(head for end, head in _CLASSES.items() if name.endswith(end)))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError):
        raise ValueError(
            "which holds no reward model (adapter_config.json of the task SEQ_CLS or TOKEN_CLS, or config.json of a "
            "model for sequence or token classification)"
        ) from None


def write_problem(folder: Path) -> str | None:
    """The reason why a reward model cannot be written to ``folder``; None if it can."""
    restore_folder(folder)
    if not folder.exists():
        return None
    if not folder.is_dir():
        return f"the reward model's folder {folder} is a file."
    if any(folder.iterdir()) and not (folder / FILE).is_file():
        return f"the reward model's folder {folder} holds other files and no reward model of ours: empty it."
    return None


def write_reward_model(folder: Path, write: Callable[[Path], None], about: Mapping[str, Any]) -> None:
    """Have ``write`` fill a draft, and put it at ``folder``, where a reader finds all of it or what was there before.

    Raises:
        FileExistsError: something is there that may not be replaced.
        OSError: it cannot be written.
    """
    with folder_lock(folder):
        if problem := write_problem(folder):
            raise FileExistsError(problem)
        with replaced_folder(folder) as draft:
            write(draft)
            (draft / FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

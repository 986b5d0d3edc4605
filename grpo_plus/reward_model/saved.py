"""The folder of a reward model: written as a whole, and never over somebody else's files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_verifiers.files import folder_lock, replaced_folder, restore_folder

FILE = "grpo_plus_reward_model.json"
"""What the model was trained on and how well it did; its presence says that the folder may be replaced."""


def place_problem(folder: Path) -> str | None:
    """The reason why a reward model cannot be written to ``folder``; None if it can."""
    restore_folder(folder)
    if not folder.exists():
        return None
    if not folder.is_dir():
        return f"the reward model's folder {folder} is a file."
    if any(folder.iterdir()) and not (folder / FILE).is_file():
        return f"the reward model's folder {folder} holds other files and no reward model of ours: empty it."
    return None


def write_whole(folder: Path, write: Callable[[Path], None], about: Mapping[str, Any]) -> None:
    """Have ``write`` fill a draft, and put it at ``folder``, where a reader finds all of it or what was there before.

    Raises:
        FileExistsError: something is there that may not be replaced.
        OSError: it cannot be written.
    """
    with folder_lock(folder):
        if problem := place_problem(folder):
            raise FileExistsError(problem)
        with replaced_folder(folder) as draft:
            write(draft)
            (draft / FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

"""The folder of a reward model: written as a whole, and never over somebody else's files."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE = "grpo_plus_reward_model.json"
"""What the model was trained on and how well it did; its presence says that the folder may be replaced."""


def place_problem(folder: Path, *, overwrite: bool, what: str = "output_dir") -> str | None:
    """The reason why a model cannot be written to ``folder``, which is ``what``; None if it can."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        return f"{what} {folder} is a file."
    if not any(folder.iterdir()):
        return None
    if not (folder / FILE).is_file():
        return f"{what} {folder} holds other files and no reward model of ours: name another folder, or empty it."
    return (
        None
        if overwrite
        else f"{what} {folder} holds a reward model already: set overwrite_output_dir, or name another."
    )


def write_whole(folder: Path, write: Callable[[Path], None], about: Mapping[str, Any]) -> None:
    """Have ``write`` fill a folder beside ``folder``, and put it there when it is complete.

    Killed anywhere, nothing is lost or half written. Between two renames ``folder`` is not there, and what it held lies
    beside it, in a folder whose name has ``-old-``.

    Raises:
        OSError: it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(draft)
        (draft / FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        draft.chmod(0o755)
        if folder.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent)) / "old"
            folder.rename(aside)
            try:
                draft.rename(folder)
            except OSError:
                aside.rename(folder)
                aside.parent.rmdir()
                raise
            shutil.rmtree(aside.parent, ignore_errors=True)
        else:
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)

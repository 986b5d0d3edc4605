"""The checkpoints in a run's folder, whole or not, and small files that may be broken."""

import json
from pathlib import Path
from typing import Any

from grpo_verifiers.files import read_text


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty if the file is missing or broken."""
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a run by step, complete or not."""
    found = [path for path in folder.glob("checkpoint-*") if path.is_dir() and _step(path) is not None]
    return sorted(found, key=lambda path: _step(path) or 0)


def is_whole(checkpoint: Path) -> bool:
    """True if a checkpoint is complete: the trainer's state is written last."""
    return "global_step" in trainer_state(checkpoint)


def trainer_state(checkpoint: Path) -> dict[str, Any]:
    """The host's own state in a checkpoint, with the states of callbacks; little is in it where it is broken."""
    state = read_json(checkpoint / "trainer_state.json")
    return state | {"stateful_callbacks": state.get("stateful_callbacks") or {}}


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    return next((path for path in reversed(checkpoints(folder)) if is_whole(path)), None)


def _step(path: Path) -> int | None:
    digits = path.name.removeprefix("checkpoint-")
    return int(digits) if digits.isdecimal() else None

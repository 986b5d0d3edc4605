"""Read TRL's own logs: the trainer's states in checkpoints."""

import json
import re
from pathlib import Path
from typing import Any

from grpo_plus.record import schema
from grpo_verifiers.files import read_text

STATE = "trainer_state.json"
_NUMBERED = re.compile(r"checkpoint-[0-9]{1,15}")
_NOT_METRICS = {"step", "epoch"}


def states(folder: Path) -> list[Path]:
    """The trainer states of a run's folder, by step."""
    found = [path for path in folder.glob(f"checkpoint-*/{STATE}") if _NUMBERED.fullmatch(path.parent.name)]
    found.sort(key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return [*found, *([folder / STATE] if (folder / STATE).is_file() else [])]


def history(folder: Path, damage: list[str]) -> list[dict[str, Any]]:
    """Metric entries of TRL's log in the form of the record; later states win."""
    entries: dict[tuple[str, int], dict[str, Any]] = {}
    for path in states(folder):
        try:
            logged = json.loads(read_text(path))["log_history"]
            for entry in map(_entry, logged):
                entries[entry["kind"], entry["step"]] = entry
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            damage.append(f"{path.relative_to(folder)} cannot be read and was left out")
    return list(entries.values())


def _entry(raw: Any) -> dict[str, Any]:
    step, figures = schema.reader(schema.Begin)(raw)["step"], schema.figures(raw)
    values = {key: value for key, value in figures.items() if key not in _NOT_METRICS}
    kind = "eval" if any(key.startswith("eval_") for key in values) else "train"
    return {"kind": kind, "step": step, "values": values}

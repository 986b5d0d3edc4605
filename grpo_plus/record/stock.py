"""Read TRL's own files: the trainer's state in checkpoints, and tables of completions."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_plus.record import schema
from grpo_plus.record.files import plain
from grpo_plus.record.sample import PROMPT_KEPT, as_text
from grpo_verifiers.files import read_text

STATE = "trainer_state.json"
TABLES = "completions"
_NUMBERED = re.compile(r"checkpoint-[0-9]{1,15}")
_NOT_METRICS = {"step", "epoch"}
_STATUS, _REASON = "_status", "_reason"
TEXT_KEPT = 20_000


def looks_like_a_run(folder: Path) -> bool:
    """True if TRL trained in this folder."""
    return bool(_states(folder)) or any((folder / TABLES).glob("*.parquet"))


def _states(folder: Path) -> list[Path]:
    """The trainer states, by step."""
    found = [path for path in folder.glob(f"checkpoint-*/{STATE}") if _NUMBERED.fullmatch(path.parent.name)]
    found.sort(key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return [*found, *([folder / STATE] if (folder / STATE).is_file() else [])]


def history(folder: Path, damage: list[str]) -> list[dict[str, Any]]:
    """Metric entries of TRL's log in the form of the record; later states win."""
    entries: dict[tuple[str, int], dict[str, Any]] = {}
    for path in _states(folder):
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


def tables(folder: Path, damage: list[str], skip: set[int]) -> Iterator[dict[str, Any]]:
    """Groups from TRL's completion tables in a run's folder, without the steps in ``skip``, which the record has.

    ``damage`` receives a sentence for every table that cannot be read.
    """
    from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]

    for path in sorted((folder / TABLES).glob("*.parquet")):
        found = re.search(r"(\d+)\.parquet$", path.name)
        if (found and int(found[1]) in skip) or not path.is_file():
            continue
        try:
            rows = parquet.read_table(path).to_pylist()
            yield from [schema.reader(schema.Group)(plain(group)) for group in _groups(rows)]
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            ArrowException,
        ):
            damage.append(f"{TABLES}/{path.name} cannot be read and was left out")


def _groups(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Split rows into groups: neighbours with the same prompt."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at]["prompt"] != rows[start]["prompt"]:
            yield _group(rows[start:at], start)
            start = at


def _group(rows: list[dict[str, Any]], first: int) -> dict[str, Any]:
    columns = list(rows[0])
    verifiers = [name.removesuffix(_STATUS) for name in columns if name.endswith(_STATUS)]
    texts = {"prompt", "completion"}
    between = [name for name in columns if name not in {*texts, "step", "advantage"}]
    rewards = [
        name
        for name in between
        if all(row[name] is None or isinstance(row[name], int | float) for row in rows)
        and not name.endswith((_STATUS, _REASON))
    ]
    return {
        "kind": "group",
        "step": int(rows[0]["step"]),
        "mode": "train",
        "group": first,
        "prompt": as_text(rows[0]["prompt"])[:PROMPT_KEPT],
        "rewards": rewards,
        "weights": None,
        "completions": [_completion(row, rewards, verifiers) for row in rows],
    }


def _completion(row: dict[str, Any], rewards: list[str], verifiers: list[str]) -> dict[str, Any]:
    return {
        "pieces": [as_text(row["completion"])[:TEXT_KEPT]],
        "tokens": None,
        "advantage": plain(row.get("advantage")),
        "rewards": [plain(row[name]) for name in rewards],
        "verdicts": [
            {"verifier": name, "status": row[name + _STATUS], "reason": str(row.get(name + _REASON) or "")}
            for name in verifiers
            if row[name + _STATUS] is not None
        ],
    }

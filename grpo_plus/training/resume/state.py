"""The state of stages in checkpoints: a JSON file and safetensors, refused if they do not fit."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo_plus.checkpoints.folder import STATE_FILE
from grpo_plus.training.hooks import TrainerStage
from grpo_plus.trl.ranks import gather_objects
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.files import read_text, write_atomic
from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus")

FILE = STATE_FILE
VERSION = 2
"""2: tensors in files of their own, and a manifest, written last; a checkpoint without one is incomplete."""


class StateError(ConfigError):
    """The state of a stage cannot be saved, or that of a checkpoint does not fit the run."""


def tensor_file(stage: TrainerStage, rank: int) -> str:
    """Return the name of the file with the tensors of a stage."""
    return f"grpo_plus_{stage.name}_{rank}.safetensors" if stage.rank_local else f"grpo_plus_{stage.name}.safetensors"


def save(stages: Sequence[TrainerStage], folder: Path, *, rank: int, write: bool) -> None:
    """Save the state of all stages in a checkpoint's folder. Every rank takes part; one of them has to ``write``.

    The JSON file is the first of a checkpoint to be written.
    """
    parts: dict[str, dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    for stage in stages:
        state, arrays = stage.state_dict(), stage.tensors()
        mine = [{"state": state, "tensors": sorted(arrays)}]
        ranks = gather_objects(mine) if stage.rank_local else mine
        if not any(one["state"] or one["tensors"] for one in ranks):
            continue
        part: dict[str, Any] = {"version": stage.state_version, "identity": stage.identity}
        part |= {"ranks": [one["state"] for one in ranks]} if stage.rank_local else {"state": state}
        if any(one["tensors"] for one in ranks):
            part["tensors"] = [one["tensors"] for one in ranks] if stage.rank_local else sorted(arrays)
        parts[stage.name] = part
        if arrays and (write or stage.rank_local):
            tensors[tensor_file(stage, rank)] = arrays
        try:
            _check_keys(part)
            json.dumps(part)
        except (TypeError, ValueError) as error:
            raise StateError(
                [f"the state of the stage {stage.name!r} must consist of JSON values: {error}."]
            ) from error
    if write:
        write_atomic(folder / FILE, json.dumps({"version": VERSION, "parts": parts}, indent=2) + "\n")
    for name, arrays in tensors.items():
        folder.mkdir(parents=True, exist_ok=True)
        copies = {key: array.detach().cpu().clone().contiguous() for key, array in arrays.items()}  # no shared storage
        save_file(copies, folder / name)


def _check_keys(value: Any) -> None:
    """Refuse keys that JSON would convert to strings: a resumed run would look for the original numbers."""
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"the key {wrong[0]!r} is no string")
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _check_keys(item)


def load(stages: Sequence[TrainerStage], checkpoint: Path, *, rank: int, processes: int, anew: bool = False) -> None:
    """Load the state of all stages from a checkpoint's folder.

    ``anew``: stages whose state is missing or another part's begin anew.

    Raises:
        StateError: names the checkpoint and every part of it that does not fit.
    """
    stateful = {stage.name: stage for stage in stages if stage.state_dict()}
    parts = read(checkpoint)
    able = {stage.name: stage for stage in stages if stage.name in stateful or _loads(stage)}  # some have no state yet
    misfits = {name: _lacking(name, parts[name]) for name in sorted(parts.keys() - able.keys())}
    problems = []
    for name, stage in able.items():
        if name not in parts:
            if name in stateful and not stage.begins_anew:
                misfits[name] = f"it holds no state of {name!r}"
        elif misfit := _misfit(stage, parts[name], processes):
            misfits[name] = misfit
        else:
            try:
                _load(stage, parts[name], checkpoint, rank=rank)
            except (ValueError, TypeError, KeyError, AttributeError, OSError, SafetensorError) as error:
                if name in stateful:
                    problems.append(f"its state of {name!r} cannot be read: {type(error).__name__}: {error}")
                else:
                    misfits[name] = _lacking(name, parts[name])
    if anew and misfits and rank == 0:
        logger.warning("allow_changes: these begin anew: %s.", ", ".join(misfits))
    if problems := [*([] if anew else misfits.values()), *problems]:
        raise _refusal(checkpoint, problems)


def _load(stage: TrainerStage, part: Mapping[str, Any], checkpoint: Path, *, rank: int) -> None:
    if state := part["ranks"][rank] if stage.rank_local else part["state"]:
        stage.load_state_dict(state)
    names = part.get("tensors") or []
    if expected := (names[rank] if names and stage.rank_local else names):
        tensors = load_file(checkpoint / tensor_file(stage, rank))
        if sorted(tensors) != sorted(expected):
            raise ValueError(f"{tensor_file(stage, rank)} holds other tensors than were saved")
        stage.load_tensors(tensors)


def _loads(stage: TrainerStage) -> bool:
    return bool(stage.name) and type(stage).load_state_dict is not TrainerStage.load_state_dict


def _lacking(name: str, part: Any) -> str:
    return f"it holds the state of {name!r} ({_identity(part)}), which this run lacks"


def read(checkpoint: Path) -> dict[str, Any]:
    """Read the parts of a checkpoint's state file by stage; empty for one of TRL's own trainer."""
    path = checkpoint / FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(read_text(path))
        version, parts = content["version"], content["parts"]
        if version == VERSION and isinstance(parts, dict):
            return parts
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise _refusal(checkpoint, [f"{FILE} cannot be read: {type(error).__name__}: {error}"]) from error
    raise _refusal(checkpoint, [f"{FILE} is of version {version!r}, and this release reads {VERSION}"])


def _misfit(stage: TrainerStage, part: Any, processes: int) -> str | None:
    kind = "ranks" if stage.rank_local else "state"
    if not isinstance(part, dict) or kind not in part:
        return f"its state of {stage.name!r} is not complete"
    if part.get("version") != stage.state_version:
        return f"its state of {stage.name!r} is of version {part.get('version')!r}, expected {stage.state_version}"
    if part.get("identity") != stage.identity:
        return f"its state of {stage.name!r} belongs to {_identity(part)}, expected {stage.identity!r}"
    if stage.rank_local and len(part["ranks"]) != processes:
        return f"its state of {stage.name!r} is that of {len(part['ranks'])} processes, and this run has {processes}"
    return None


def _identity(part: Any) -> str:
    return repr(part.get("identity")) if isinstance(part, dict) else "something unreadable"


def _refusal(checkpoint: Path, problems: Sequence[str]) -> StateError:
    text = (
        f"the checkpoint {checkpoint} does not fit this run: {'; '.join(problems)}. Resume with the config, hooks, "
        "number of processes and release that saved it; or start a new run from its weights: "
        f"model_name_or_path: {checkpoint}."
    )
    return StateError([text])

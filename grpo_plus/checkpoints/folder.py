"""The checkpoints in a run's folder: completeness, order of writing, rotation, resuming, and the final model."""

import contextlib
import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.checkpoints import manifest
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import counted
from grpo_verifiers.files import read_text

STATE_FILE = "grpo_plus_state.json"
"""The state of hooks, the first file of a checkpoint to be written."""
_TRAINER_STATE = "trainer_state.json"
_WEIGHTS = ("model*.safetensors", "adapter_model.*", "pytorch_model*", "global_step*")
"""Files of weights, and the folders that FSDP and DeepSpeed have in their place."""
_TRAINING_STATE = ("*optimizer*", "scheduler.pt", "rng_state*.pth", "global_step*")
_REMOVING = ".removing-"
_FINISHED: set[Path] = set()
"""The checkpoints that this process has written."""


@dataclass(frozen=True)
class Choice:
    """The newest complete checkpoint, if there is one, and a line on each newer one that is torn."""

    checkpoint: Path | None
    passed_over: tuple[str, ...]


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty if the file is missing or broken."""
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders of a run by step, complete or torn."""
    folders = [path for path in folder.glob("checkpoint-*") if path.is_dir() and step_of(path) is not None]
    return sorted(folders, key=lambda path: step_of(path) or 0)


def step_of(checkpoint: Path) -> int | None:
    """The step in the name of a checkpoint's folder; None: it is not named like one."""
    digits = checkpoint.name.removeprefix("checkpoint-")
    return int(digits) if digits.isdecimal() else None


def written(checkpoint: Path) -> float:
    """The time when a checkpoint was finished; of one without a readable manifest, when it was last changed."""
    try:
        return manifest.read(checkpoint).time
    except manifest.ManifestError:
        return _changed(checkpoint)


def in_order(folder: Path) -> list[Path]:
    """The checkpoint folders of a run, complete or torn, in the order of writing.

    After resuming from an older checkpoint the new ones come last, at any step. Checkpoints without
    a manifest are in the order of their steps: a copy of a folder has new times in any order.
    """
    times: dict[Path, float] = {}
    latest = 0.0
    for path in checkpoints(folder):
        times[path] = written(path)
        if not _is_sealed(path):
            latest = times[path] = max(latest, times[path])
    return sorted(times, key=lambda path: (times[path], step_of(path)))


def problem(checkpoint: Path, *, hashes: bool = True) -> str | None:
    """The first file of a checkpoint that is not as it was written, in words; None for a complete checkpoint.

    Without ``hashes`` only the sizes of files are compared: for lists, not for resuming. A checkpoint
    of TRL's own trainer needs only a state and weights.
    """
    if _is_sealed(checkpoint):
        return manifest.problem(checkpoint, hashes=hashes)
    if "global_step" not in read_json(checkpoint / _TRAINER_STATE):
        return f"{_TRAINER_STATE} is missing or broken"
    weights = [path for pattern in _WEIGHTS for path in checkpoint.glob(pattern)]
    return (
        None
        if any(path.is_dir() or (path.exists() and path.stat().st_size) for path in weights)
        else "it holds no weights"
    )


def is_intact(checkpoint: Path, *, hashes: bool = True) -> bool:
    """True if every file of a checkpoint is as it was written."""
    return problem(checkpoint, hashes=hashes) is None


def weights_only(checkpoint: Path) -> bool:
    """True if a checkpoint has neither optimizer nor schedule nor random state."""
    return not any(path for pattern in _TRAINING_STATE for path in checkpoint.glob(pattern))


def choose(folder: Path, *, hashes: bool = True) -> Choice:
    """The newest complete checkpoint of a run's folder."""
    passed_over: list[str] = []
    for path in reversed(in_order(folder)):
        reason = problem(path, hashes=hashes)
        if reason is None:
            return Choice(path, tuple(passed_over))
        passed_over.append(f"{path.name} is passed over: {reason}")
    return Choice(None, tuple(passed_over))


def last_checkpoint(folder: Path, *, hashes: bool = True) -> Path | None:
    """The newest complete checkpoint."""
    return choose(folder, hashes=hashes).checkpoint


def finish(checkpoint: Path, step: int) -> None:
    """Write the manifest of a checkpoint, which every process has written to its end; after an OSError it is torn."""
    siblings = [path for path in checkpoints(checkpoint.parent) if path.name != checkpoint.name]
    manifest.write(checkpoint, step, after=max(map(written, siblings), default=0.0))
    _FINISHED.add(checkpoint.resolve())


def rotate(folder: Path, limit: int | None, best: str | Path | None = None) -> list[str]:
    """Remove checkpoints above a limit: torn ones, then the oldest, but neither the newest complete one nor the best.

    Returns a line on each that could not be removed.
    """
    clean(folder)
    if not limit or limit < 1:
        return []
    ordered = in_order(folder)
    complete = [path for path in ordered if is_intact(path, hashes=False)]
    if not complete:
        return []
    keep = {complete[-1], *(path for path in ordered if best is not None and path.resolve() == Path(best).resolve())}
    finished = ordered[: ordered.index(complete[-1]) + 1]  # a later one may still be in writing
    removable = sorted((path for path in finished if path not in keep), key=lambda path: path in complete)
    problems = []
    for path in removable[: max(0, len(finished) - max(limit, len(keep)))]:
        try:
            remove(path)
        except OSError as error:
            problems.append(f"{path} cannot be removed (save_total_limit): {error.strerror}")
    return problems


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, renamed first, so that no reader sees a half; `clean` removes the rest."""
    aside = checkpoint.with_name(f"{_REMOVING}{checkpoint.name}-{secrets.token_hex(4)}")
    checkpoint.rename(aside)
    _remove(aside)


def clean(folder: Path) -> None:
    """Remove the rest of interrupted removals."""
    for path in folder.glob(f"{_REMOVING}checkpoint-*"):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_symlink():  # its target is not part of the run
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _is_sealed(checkpoint: Path) -> bool:
    """True if a checkpoint has, or lacks, a manifest; one of TRL's own trainer needs none."""
    return (checkpoint / manifest.FILE).exists() or (checkpoint / STATE_FILE).exists()


def _changed(checkpoint: Path) -> float:
    for path in (checkpoint / _TRAINER_STATE, checkpoint):
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0


def of_other_runs(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder that this process has not written."""
    return [path for path in checkpoints(folder) if path.resolve() not in _FINISHED and is_intact(path, hashes=False)]


def occupied(folder: Path, old: Sequence[Path], *, resume: str, elsewhere: str, anew: str) -> str:
    """The message on an output folder with another run's checkpoints, with the command or call of each way out."""
    choice = choose(folder, hashes=False)
    on = f"\n  resume {last.name}: {resume}" if (last := choice.checkpoint) else ""
    torn = "" if last else f" None is complete: {'; '.join(choice.passed_over)}."
    return (
        f"output_dir {folder} holds {counted(len(old), 'checkpoint')} of an earlier run.{torn} Either:{on}\n"
        f"  start anew elsewhere:  {elsewhere}\n"
        f"  start anew here:       {anew}   (removes {_names(old)})"
    )


def empty(folder: Path, old: Sequence[Path]) -> list[str]:
    """Remove another run's checkpoints, rests of interrupted removals and the model's manifest; return a line on it."""
    try:
        clean(folder)
        unseal_model(folder)
        for path in old:
            remove(path)
    except OSError as error:
        problem = f"output_dir {folder}: {error.filename} cannot be removed ({error.strerror})."
        raise CheckpointError([problem]) from error
    return [f"Removed {_names(old)} from {folder} (overwrite_output_dir)."] if old else []


def _names(paths: Sequence[Path]) -> str:
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} to {paths[-1].name}"


NEWEST = "last"


class CheckpointError(ConfigError):
    """There is no such checkpoint, or it is torn."""


def resume_choice(value: Any, folder: Path) -> Choice:
    """The checkpoint of ``resume_from_checkpoint``: a path, or True or ``last`` for the newest complete one."""
    return newest(value, folder) if value is True or value == NEWEST else by_path(Path(value), folder)


def newest(value: Any, folder: Path) -> Choice:
    """The newest complete checkpoint in a folder, or an error about each torn one; ``value`` is that of the option."""
    choice = choose(folder)
    if choice.checkpoint is None:
        why = f"there is nothing to resume: {folder} holds no complete checkpoint"
        way = "Leave the option out to start from the beginning."
        torn = "".join(f"\n  {line}" for line in choice.passed_over)
        raise CheckpointError([f"resume_from_checkpoint is {value!r}, but {why}. {way}{torn}"])
    return choice


def by_path(checkpoint: Path, folder: Path) -> Choice:
    """A checkpoint by its path; ``folder`` is the run's."""
    if not checkpoint.is_dir():
        raise CheckpointError([f"resume_from_checkpoint: there is no folder {str(checkpoint)!r}. {newest_one(folder)}"])
    if reason := problem(checkpoint):
        raise CheckpointError(
            [f"resume_from_checkpoint: {checkpoint} is no complete checkpoint: {reason}. {newest_one(folder)}"]
        )
    return Choice(checkpoint, ())


def newest_one(folder: Path) -> str:
    """Describe the newest complete checkpoint of a run."""
    last = last_checkpoint(folder, hashes=False)
    return f"The newest complete one in {folder} is {last.name}." if last else f"{folder} holds no complete checkpoint."


MODEL_FILE = "grpo_plus_model.json"
"""The manifest of weights, config and tokenizer; written when nothing of the run is left to do."""
_MODEL_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")
_MODEL_CONFIG = ("config.json", "generation_config.json", "adapter_config.json", "*processor_config.json")
_TOKENIZER = ("tokenizer*", "chat_template*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt")
_MODEL_PARTS = (*_MODEL_WEIGHTS, *_MODEL_CONFIG, *_TOKENIZER, "*.model")


def seal_model(folder: Path, step: int) -> None:
    """Write the manifest of the model in a run's folder, after ``step`` optimizer steps."""
    files = {path for pattern in _MODEL_PARTS for path in folder.glob(pattern) if path.is_file()}
    manifest.write(folder, step, files, name=MODEL_FILE)


def unseal_model(folder: Path) -> None:
    """Remove the manifest: the run continues, so the model is outdated."""
    (folder / MODEL_FILE).unlink(missing_ok=True)


def is_model_of(checkpoint: Path) -> bool:
    """True if the model next to a checkpoint is complete and was written after it, at the same step."""
    folder = checkpoint.parent
    try:
        sealed = manifest.read(folder, MODEL_FILE)
    except manifest.ManifestError:
        return False
    same = sealed.step == step_of(checkpoint) and sealed.time >= written(checkpoint)
    return same and manifest.problem(folder, MODEL_FILE) is None

"""The checkpoint that a run resumes from: never a torn one."""

from pathlib import Path
from typing import Any

from grpo_plus.checkpoints.folder import Choice, choose, last_checkpoint, problem
from grpo_verifiers.errors import ConfigError

NEWEST = "last"


class CheckpointError(ConfigError):
    """There is no such checkpoint, or it is torn."""


def resume_choice(value: Any, folder: Path) -> Choice:
    """The checkpoint that ``resume_from_checkpoint`` means to a trainer.

    ``value`` is a path, or True or ``last`` for the newest complete checkpoint in the folder.

    Raises:
        CheckpointError: there is no such checkpoint, or it is torn; names the file and the newest complete checkpoint.
    """
    return newest(value, folder) if value is True or value == NEWEST else by_path(Path(value), folder)


def newest(value: Any, folder: Path) -> Choice:
    """The newest complete checkpoint in a folder; ``value`` is that of the option.

    Raises:
        CheckpointError: none is complete; names each that is torn, and why.
    """
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

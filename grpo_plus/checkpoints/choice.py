"""The checkpoint that a run goes on from: never a torn one."""

from pathlib import Path
from typing import Any

from grpo_plus.checkpoints.folder import Choice, choose, last_checkpoint, problem
from grpo_verifiers.errors import ConfigError

NEWEST = "last"


class CheckpointError(ConfigError):
    """There is no such checkpoint, or it is torn."""


def resume_choice(value: Any, folder: Path) -> Choice:
    """The checkpoint that ``resume_from_checkpoint`` means to a trainer.

    ``value`` is a path, or True or ``last`` for the newest whole checkpoint in the folder.

    Raises:
        CheckpointError: there is no such checkpoint, or it is torn; names the file and the newest whole checkpoint.
    """
    return newest(value, folder) if value is True or value == NEWEST else given(Path(value), folder)


def newest(value: Any, folder: Path) -> Choice:
    """The newest whole checkpoint in a folder; ``value`` is what asked for it.

    Raises:
        CheckpointError: none is whole; names each that is torn, and why.
    """
    found = choose(folder)
    if found.checkpoint is None:
        why = f"there is nothing to resume: {folder} holds no whole checkpoint"
        way = "Leave the option out to start from the beginning."
        torn = "".join(f"\n  {line}" for line in found.passed_over)
        raise CheckpointError([f"resume_from_checkpoint is {value!r}, but {why}. {way}{torn}"])
    return found


def given(checkpoint: Path, folder: Path) -> Choice:
    """A checkpoint by its path; ``folder`` is the run's."""
    if not checkpoint.is_dir():
        raise CheckpointError([f"resume_from_checkpoint: there is no folder {str(checkpoint)!r}. {others(folder)}"])
    if found := problem(checkpoint):
        raise CheckpointError(
            [f"resume_from_checkpoint: {checkpoint} is no whole checkpoint: {found}. {others(folder)}"]
        )
    return Choice(checkpoint, ())


def others(folder: Path) -> str:
    """A sentence about the newest whole checkpoint of a run."""
    last = last_checkpoint(folder, hashes=False)
    return f"The newest whole one in {folder} is {last.name}." if last else f"{folder} holds no whole checkpoint."

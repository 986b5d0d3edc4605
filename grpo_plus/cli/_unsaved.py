"""What to tell at the end of a run that could not write everything."""

from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus.checkpoints.disk import FailedWrite
from grpo_plus.checkpoints.folder import last_checkpoint
from grpo_plus.cli import UserError

if TYPE_CHECKING:
    from grpo_plus.trainer import GRPOPlusTrainer


def unsaved(trainer: "GRPOPlusTrainer", model: FailedWrite | None, command: str, *, stopped: bool) -> str | None:
    """The message, or None; ``model`` is why the trained model was not saved, ``command`` resumes the run."""
    folder, at, checkpoint = Path(trainer.args.output_dir), trainer.state, trainer.saving.failed
    if model is not None:
        told = f"trained to step {at.global_step}, but the model could not be written to {folder}: {model}"
        return f"{told}. {_way_on(folder, model, command)}"
    if checkpoint is None:
        return None
    if stopped:
        told = f"stopped after step {at.global_step} of {at.max_steps}, whose checkpoint could not be written"
        return f"{told}: {checkpoint}. {_way_on(folder, checkpoint, command)}"
    last = last_checkpoint(folder, hashes=False)
    return (
        f"the model is in {folder}, but the checkpoint of step {at.global_step} could not be written: {checkpoint}. "
        + (f"A longer run goes on from {last.name}." if last else "There is no whole one to go on from.")
    )


def lost(problem: FailedWrite, folder: Path, command: str) -> UserError:
    """The error for a run that a failed write has ended."""
    return UserError(f"{problem}. {_way_on(folder, problem, command)}")


def _way_on(folder: Path, problem: FailedWrite, command: str) -> str:
    last = last_checkpoint(folder)
    if last is None:
        return (
            f"There is no whole checkpoint to resume from. {problem.remedy} and start again; save_strategy: steps "
            "keeps checkpoints on the way."
        )
    return f"The last whole checkpoint is {last.name}. {problem.remedy}, and go on with:\n  {command}"

"""The end of a run that could not write everything: one more try, another place for the model, and what to tell."""

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus import _trl
from grpo_plus.checkpoints.disk import FailedWrite, free_bytes
from grpo_plus.checkpoints.folder import last_checkpoint
from grpo_plus.cli import UserError
from grpo_plus.cli._space import model_bytes

if TYPE_CHECKING:
    from grpo_plus.trainer import GRPOPlusTrainer

ROOM = 2
"""How many models must fit in the temporary folder before one is put there."""


def finish(trainer: "GRPOPlusTrainer", model: FailedWrite | None, command: str, *, stopped: bool) -> str | None:
    """Try once more to write what could not be written; gives what to tell where it still cannot.

    ``model`` is why the trained model was not saved, ``command`` resumes the run. Every process takes part.
    """
    folder, at = Path(trainer.args.output_dir), trainer.state
    if trainer.saving.failed is not None:
        _trl.save_checkpoint(trainer)
    if model is not None:
        model = trainer.saving.save_model(folder)
    checkpoint = trainer.saving.failed
    last = last_checkpoint(folder, hashes=False)
    if stopped and checkpoint is not None:
        return (
            f"stopped after step {at.global_step} of {at.max_steps}, whose checkpoint could not be written: "
            f"{checkpoint}. {_way_on(last, checkpoint, command)}"
        )
    if model is not None:
        told = f"trained to step {at.global_step}, but the model could not be written to {folder}: {model}. "
        whole = last is not None and last.name == f"checkpoint-{at.global_step}"
        if _trl.gather_objects([whole])[0]:  # folders on the disks of other machines differ
            return f"{told}{last} holds it, whole: copy it from there."
        place = _elsewhere(trainer, model)
        if place is not None:
            move = shlex.join(["mv", str(place), f"{folder}-model"])
            return f"{told}It is in {place} instead, which is cleared at times. Move it, for example:\n  {move}"
        return f"{told}It is lost. {_way_on(last, model, command)}"
    if checkpoint is not None:
        longer = f"a longer run goes on from {last.name}" if last else "there is no whole one to go on from"
        return (
            f"the model is in {folder}, but the checkpoint of step {at.global_step} could not be written: "
            f"{checkpoint}. {longer[0].upper()}{longer[1:]}."
        )
    return None


def _way_on(last: Path | None, problem: FailedWrite, command: str) -> str:
    if last is None:
        return (
            f"There is no whole checkpoint to resume from. {problem.remedy} and start again; save_strategy: steps "
            "keeps checkpoints on the way."
        )
    return f"The last whole checkpoint is {last.name}. {problem.remedy}, and go on with:\n  {command}"


def _elsewhere(trainer: "GRPOPlusTrainer", problem: FailedWrite) -> Path | None:
    """Save the model in the temporary folder, if it leaves enough room there; gives the place."""
    chosen = _trl.gather_objects([str(_place(trainer, problem) or "")])[0]
    if not chosen:
        return None
    place = Path(chosen)
    return place if trainer.saving.save_model(place) is None else None


def _place(trainer: "GRPOPlusTrainer", problem: FailedWrite) -> Path | None:
    if not trainer.is_world_process_zero():
        return None
    try:
        place = Path(tempfile.gettempdir())
        size = model_bytes(trainer.accelerator.unwrap_model(trainer.model))
        if free_bytes(place) < ROOM * size or (problem.full and _same_disk(place, Path(trainer.args.output_dir))):
            return None
        return Path(tempfile.mkdtemp(prefix="grpo-plus-model-"))
    except OSError:
        return None


def _same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def lost(problem: FailedWrite, folder: Path, command: str) -> UserError:
    """The error for a run that a failed write has ended."""
    return UserError(f"{problem}. {_way_on(last_checkpoint(folder), problem, command)}")

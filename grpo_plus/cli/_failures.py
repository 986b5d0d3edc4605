"""What is told where the disk or the hub keeps a run from its beginning or its end."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus.checkpoints.disk import FailedWrite
from grpo_plus.checkpoints.folder import last_checkpoint
from grpo_plus.cli import UserError

if TYPE_CHECKING:
    from grpo_plus.config import GRPOPlusConfig
    from grpo_plus.trainer import GRPOPlusTrainer


def hub_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a hub that refuses or is down, whichever HTTP library huggingface_hub uses, and of the disk."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple({OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))})


def not_made(path: str, args: "GRPOPlusConfig", error: Exception) -> str:
    """The message for a trainer that the disk or the hub kept from being made."""
    asked = str(error)
    with suppress(AttributeError, RuntimeError):  # an error of the disk has no request
        asked += str(error.request.url)  # type: ignore[attr-defined]
    if args.push_to_hub and "/api/repos/create" in asked:
        return (
            f"push_to_hub: the repository {args.hub_model_id or Path(args.output_dir).name!r} cannot be made: {error}. "
            "Log in (hf auth login, or HF_TOKEN) with a token that may write there, or correct hub_model_id; or set "
            "push_to_hub: false, train, and push the folder later (hf upload)."
        )
    return f"model_name_or_path: loading {path!r} failed: {error}"


def push(trainer: "GRPOPlusTrainer", dataset: str | None) -> str:
    """Push the model by TRL's own way; gives the message where that failed. The model stays where it is."""
    try:
        trainer.push_to_hub(dataset_name=dataset)
    except hub_errors() as error:
        folder = trainer.args.output_dir
        later = shlex.join(["hf", "upload", str(trainer.hub_model_id), folder, "--exclude", "checkpoint-*", "_*"])
        return f"the model is in {folder}, but was not pushed to the Hub ({error}). Push it later:\n  {later}"
    return ""


def unsaved(trainer: "GRPOPlusTrainer", model: FailedWrite | None, command: str, *, stopped: bool) -> str | None:
    """The message, or None; ``model`` is why the trained model was not saved, ``command`` resumes the run."""
    folder, at, checkpoint = Path(trainer.args.output_dir), trainer.state, trainer.pipeline.saving.failed
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

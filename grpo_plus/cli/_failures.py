"""Messages for failures of the disk or the hub at the start or end of a run."""

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
    """Return the exceptions of the hub, for any HTTP library of huggingface_hub, and of the disk."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple({OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))})


def trainer_failure(path: str, args: "GRPOPlusConfig", error: Exception) -> str:
    """Return the message for a failure of the disk or the hub while the trainer is built."""
    request = str(error)
    with suppress(AttributeError, RuntimeError):  # an error of the disk has no request
        request += str(error.request.url)  # type: ignore[attr-defined]
    if args.push_to_hub and "/api/repos/create" in request:
        return (
            f"push_to_hub: cannot create the repository {args.hub_model_id or Path(args.output_dir).name!r}: {error}. "
            "Log in (hf auth login, or HF_TOKEN) with a token that may write there, or correct hub_model_id; or set "
            "push_to_hub: false, train, and push the folder later (hf upload)."
        )
    return f"model_name_or_path: loading {path!r} failed: {error}"


def push(trainer: "GRPOPlusTrainer", dataset: str | None) -> str:
    """Push the model with TRL's own method; return a message if that fails. The model stays in its folder."""
    try:
        trainer.push_to_hub(dataset_name=dataset)
    except hub_errors() as error:
        folder = trainer.args.output_dir
        later = shlex.join(["hf", "upload", str(trainer.hub_model_id), folder, "--exclude", "checkpoint-*", "_*"])
        return f"the model is in {folder}, but was not pushed to the Hub ({error}). Push it later:\n  {later}"
    return ""


def final_save_problem(
    trainer: "GRPOPlusTrainer", model: FailedWrite | None, command: str, *, stopped: bool
) -> str | None:
    """Return the message for a failed write of ``model`` or a checkpoint, or None; ``command`` resumes the run."""
    folder, at, checkpoint = Path(trainer.args.output_dir), trainer.state, trainer.pipeline.saving.failed
    if model is not None:
        message = f"trained to step {at.global_step}, but the model could not be written to {folder}: {model}"
        return f"{message}. {_resume_hint(folder, model, command)}"
    if checkpoint is None:
        return None
    if stopped:
        message = f"stopped after step {at.global_step} of {at.max_steps}, whose checkpoint could not be written"
        return f"{message}: {checkpoint}. {_resume_hint(folder, checkpoint, command)}"
    last = last_checkpoint(folder, hashes=False)
    return (
        f"the model is in {folder}, but the checkpoint of step {at.global_step} could not be written: {checkpoint}. "
        + (f"A longer run resumes from {last.name}." if last else "There is no complete one to resume from.")
    )


def write_failure(problem: FailedWrite, folder: Path, command: str) -> UserError:
    """Return the error for a run that ended with a failed write."""
    return UserError(f"{problem}. {_resume_hint(folder, problem, command)}")


def _resume_hint(folder: Path, problem: FailedWrite, command: str) -> str:
    last = last_checkpoint(folder)
    if last is None:
        return (
            f"There is no complete checkpoint to resume from. {problem.remedy} and start again; save_strategy: steps "
            "keeps checkpoints on the way."
        )
    return f"The last complete checkpoint is {last.name}. {problem.remedy}, and resume with:\n  {command}"

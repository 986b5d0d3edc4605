"""The hub at the end of a training, and what is told where it cannot be reached."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

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

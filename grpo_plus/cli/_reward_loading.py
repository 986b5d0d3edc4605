"""Loading and writing reward models: with one value a sequence, or one a token."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_plus.cli import UserError
from grpo_plus.cli._reward_data import PAIRS


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the host's table of weights that are new or left over: we look at them ourselves."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def load_tokenizer(name: str, **common: Any) -> Any:
    """The tokenizer of a model, with a padding token as TRL chooses it."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **common)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the tokenizer of {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {name!r} has no padding token and no end-of-sequence token to pad with.")
    return tokenizer


def load_model(name: str, kind: str, tokenizer: Any, *, trained: bool, **given: Any) -> tuple[Any, bool]:
    """A model with one value, and whether its head is new (all zeros, so that every score begins as 0).

    ``trained``: it is a reward model already, and must have a head.
    """
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    cls = AutoModelForSequenceClassification if kind == PAIRS else AutoModelForTokenClassification
    adapter = (Path(name).expanduser() / "adapter_config.json").is_file()
    try:
        with quiet():
            model, found = cls.from_pretrained(name, num_labels=1, output_loading_info=True, **given)
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        raise UserError(f"the model {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    if adapter:  # its base has no head: that stands in the adapter
        return model, False
    missing = sorted(found["missing_keys"])
    trunk = [key for key in missing if key.startswith(f"{model.base_model_prefix}.")]
    if trunk or (missing and trained):
        lacks = ", ".join((trunk or missing)[:4])
        raise UserError(
            f"the checkpoint {name!r} has no weights for {lacks}, which would be random: it is no such model."
        )
    import torch

    with torch.no_grad():
        for key in missing:
            model.get_parameter(key).zero_()
    return model, bool(missing)


def head_names(model: Any) -> list[str]:
    """The modules on top of the trunk that have weights."""
    own = model.base_model_prefix
    return [name for name, module in model.named_children() if name != own and any(True for _ in module.parameters())]

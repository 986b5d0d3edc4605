"""Export of a trained adapter for other programs."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from grpo_plus.qlora.model import method_of
from grpo_verifiers.files import read_text

ADAPTER = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip


class ExportError(ValueError):
    """The export is impossible; the message names a possible one."""


def find_adapter(run: Path) -> Path:
    """Return the folder of the adapter in a run: the run's own, else its latest checkpoint's.

    Raises:
        ExportError: there is none.
    """
    if not run.is_dir():
        raise ExportError(f"{run} is no folder; name the output_dir of a run, or one of its checkpoints.")
    if (run / ADAPTER).is_file():
        return run
    checkpoints = [path.parent for path in run.glob(f"checkpoint-*/{ADAPTER}") if path.parent.name[11:].isdigit()]
    if checkpoints:
        return max(checkpoints, key=lambda path: int(path.name[11:]))
    if (run / "config.json").is_file():
        raise ExportError(f"{run} holds a full model, not an adapter: it can be loaded as it is.")
    raise ExportError(f"{run} holds no adapter ({ADAPTER}), and neither do checkpoints in it.")


def base_of(adapter: Path, base: str | None) -> str:
    """Return the 16-bit base model of an adapter.

    Raises:
        ExportError: there is no name, or the model is stored quantised.
    """
    from transformers import AutoConfig

    name = base or _values(adapter).get("base_model_name_or_path")
    if not name:
        raise ExportError(f"{adapter / ADAPTER} names no base model: name it with --base.")
    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ExportError(f"the base model {name} cannot be read ({error}); name another with --base.") from error
    method = method_of(config)
    if method is not None:
        raise ExportError(
            f"the base model {name} is stored quantised ({method}); merging into quantised weights loses most of the "
            "adapter in the rounding. Name the original 16-bit checkpoint with --base."
        )
    return str(name)


def _values(adapter: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_text(adapter / ADAPTER))
    except (OSError, ValueError) as error:
        raise ExportError(f"{adapter / ADAPTER} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise ExportError(f"{adapter / ADAPTER} holds {values!r:.80}, expected the settings of an adapter.")
    return values


def copy_adapter(adapter: Path, out: Path) -> None:
    """Copy the adapter and its tokenizer."""
    weights = [name for name in _WEIGHTS if (adapter / name).is_file()]
    if not weights:
        raise ExportError(f"{adapter} has {ADAPTER} but no weights ({' or '.join(_WEIGHTS)}).")
    out.mkdir(parents=True, exist_ok=True)
    for name in (ADAPTER, *weights, *_TOKENIZER):
        if (adapter / name).is_file():
            shutil.copy2(adapter / name, out / name)


def merge(adapter: Path, base: str, out: Path, *, dtype: torch.dtype) -> None:
    """Merge the adapter into its base (from `base_of`), which is loaded in ``dtype``, and save the full model."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    own = (adapter / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(adapter if own else base)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    try:
        model = PeftModel.from_pretrained(model, adapter).eval()
    except (RuntimeError, ValueError) as error:
        raise ExportError(
            f"the adapter {adapter} does not belong on {base} ({str(error).strip()[:300]}); name the model that it was "
            "trained on with --base."
        ) from error
    kind = model.active_peft_config
    if kind.is_prompt_learning:
        raise ExportError(
            f"the adapter {adapter} is {kind.peft_type.value}: it adds to the prompt, not to the weights, so nothing "
            "can be merged. Omit --merge, and load it together with its base."
        )
    model.merge_and_unload().save_pretrained(out)
    tokenizer.save_pretrained(out)

"""Notes on a command line and its prompt: thinking beyond the token limit, formats missing from the prompt."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grpo_plus.cli._prompts import FORMATS
from grpo_plus.doctor.template import thinks_by_default as template_thinks
from grpo_plus.recipe.recipe import Recipe, recipe_of
from grpo_plus.recipe.table import config_notes
from grpo_plus.recipe.values import changed_fields
from grpo_verifiers.registry import is_reference

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed


ROOM_TO_THINK = 4096
"""Tokens that a thinking model commonly needs for a school mathematics problem."""
_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora", "use_dora")
_THINKS = re.compile(r"(.*/)?Qwen3-\d+(\.\d+)?B(-A\d+(\.\d+)?B)?(-(FP8|AWQ|GPTQ|unsloth|bnb|GGUF).*)?", re.IGNORECASE)
"""Names of models whose template lets them think by default."""


def command_notes(parsed: "Parsed") -> list[str]:
    """Return a sentence for each unused or surprising setting of a valid command line."""
    return [*config_notes(parsed.training), *adapter_notes(parsed)]


def adapter_notes(parsed: "Parsed") -> list[str]:
    """Return notes on unused adapter options."""
    unused = [] if parsed.model.use_peft else changed_fields(parsed.model, _OF_ADAPTERS)
    return [f"{name} ({getattr(parsed.model, name)!r}) is not read: use_peft is false." for name in unused]


def prompt_notes(parsed: "Parsed") -> list[str]:
    """Return notes on the prompt before any row is read; the tokenizer is used only if it is on this machine."""
    name = parsed.model.model_name_or_path
    if not name or is_reference(name):
        return []
    return template_notes(parsed.training, parsed.prompt, name, local_tokenizer(name))


def template_notes(
    config: Any, prompt: Mapping[str, Any], model: str, tokenizer: Any = None, text: str | None = None
) -> list[str]:
    """Return one sentence for each note. ``text`` is a full prompt as the model reads it; None if not known yet."""
    return [*_thinking(config, model, tokenizer), *_missing_tags(recipe_of(config), prompt, text)]


def thinks_by_default(model: str, tokenizer: Any = None) -> bool:
    """Return True if the model thinks unless ``enable_thinking`` is false; without a tokenizer, decide by its name."""
    return _THINKS.fullmatch(model) is not None if tokenizer is None else template_thinks(tokenizer)


def local_tokenizer(model: str) -> Any:
    """Return the tokenizer if its files are on this machine, else None, without a download."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception:  # noqa: BLE001 - training reports the error
        return None


def _thinking(config: Any, model: str, tokenizer: Any) -> list[str]:
    keywords, limit = config.chat_template_kwargs or {}, config.max_completion_length
    if (
        "enable_thinking" in keywords
        or limit is None
        or limit >= ROOM_TO_THINK
        or not thinks_by_default(model, tokenizer)
    ):
        return []
    text = f"the chat template of {model} has the model think before it answers, and max_completion_length is {limit}"
    remedy = "chat_template_kwargs: {enable_thinking: false}, or true with a max_completion_length of"
    return [f"{text}: most answers would be cut off. Set {remedy} {ROOM_TO_THINK} or more."]


def _missing_tags(recipe: Recipe, prompt: Mapping[str, Any], text: str | None) -> Iterator[str]:
    template = prompt.get("template")
    instructions = FORMATS[template].text if template else ""
    words = " ".join([str(prompt.get("system", "")), str(prompt.get("user", "")), instructions, text or ""])
    if text is None and not prompt:
        return  # the data's own prompts may have the tags
    for part in recipe.verifiers:
        missing = [tag for tag in _tags(part.verifier.describe()) if tag not in words]
        if part.weight == 0 or not missing:
            continue
        note = f"the verifier {part.label!r} rewards {', '.join(missing)}, but the prompt never asks for it"
        fitting = "think_answer" if "<answer>" in missing else "think_boxed"
        yield f"{note}: name a template with it (prompt: {{template: {fitting}}}), or write it in system."


def _tags(described: Mapping[str, Any]) -> list[str]:
    """Return the opening tags required by a format verifier."""
    options = described.get("options") or {}
    if described.get("name") == "think_format":
        names = [options.get("think") or "think", options.get("answer")]
    elif described.get("name") == "tag_count":
        names = list(options.get("tags") or ("think", "answer"))
    else:
        return []
    tags = [f"<{name}>" for name in names if name]
    return tags[1:] if options.get("prefilled") else tags

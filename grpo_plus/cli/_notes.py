"""Notes on a command line, and on its prompt: thinking beyond the limit of tokens, formats that nothing asks for."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grpo_plus.cli._prompts import FORMATS
from grpo_plus.doctor.template import thinks_unasked
from grpo_plus.recipe.recipe import Recipe, recipe_of
from grpo_plus.recipe.table import config_notes
from grpo_plus.recipe.values import changed_fields
from grpo_verifiers.registry import is_reference

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed


ROOM_TO_THINK = 4096
"""Tokens that a thinking model commonly wants for a problem of school mathematics."""
_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora", "use_dora")
_THINKS = re.compile(r"(.*/)?Qwen3-\d+(\.\d+)?B(-A\d+(\.\d+)?B)?(-(FP8|AWQ|GPTQ|unsloth|bnb|GGUF).*)?", re.IGNORECASE)
"""Names of models whose template lets them think unless it is told otherwise."""


def command_notes(parsed: "Parsed") -> list[str]:
    """One sentence for everything in a valid command line that is not read or may surprise."""
    return [*config_notes(parsed.training), *beside_notes(parsed)]


def beside_notes(parsed: "Parsed") -> list[str]:
    """Notes on the options beside the training config."""
    given = [] if parsed.model.use_peft else changed_fields(parsed.model, _OF_ADAPTERS)
    return [f"{name} ({getattr(parsed.model, name)!r}) is not read: use_peft is false." for name in given]


def prompt_notes(parsed: "Parsed") -> list[str]:
    """Notes on the prompt before any row is read; of the tokenizer only what is on this machine."""
    name = parsed.model.model_name_or_path
    if not name or is_reference(name):
        return []
    return template_notes(parsed.training, parsed.prompt, name, local_tokenizer(name))


def template_notes(
    config: Any, prompt: Mapping[str, Any], model: str, tokenizer: Any = None, text: str | None = None
) -> list[str]:
    """One sentence for each. ``text`` is a whole prompt as the model reads it; None where it is not known yet."""
    return [*_thinking(config, model, tokenizer), *_unasked(recipe_of(config), prompt, text)]


def thinks_by_default(model: str, tokenizer: Any = None) -> bool:
    """The chat template lets the model think unless ``enable_thinking`` is false; without a tokenizer, by its name."""
    return _THINKS.fullmatch(model) is not None if tokenizer is None else thinks_unasked(tokenizer)


def local_tokenizer(model: str) -> Any:
    """The tokenizer, if its files are on this machine; None: nothing is downloaded for a remark."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception:  # noqa: BLE001 - whatever it is, training says it
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


def _unasked(recipe: Recipe, prompt: Mapping[str, Any], text: str | None) -> Iterator[str]:
    template = prompt.get("template")
    asked = FORMATS[template].text if template else ""
    words = " ".join([str(prompt.get("system", "")), str(prompt.get("user", "")), asked, text or ""])
    if text is None and not prompt:
        return  # the data's own prompts may ask
    for part in recipe.verifiers:
        missing = [tag for tag in _tags(part.verifier.describe()) if tag not in words]
        if part.weight == 0 or not missing:
            continue
        said = f"the verifier {part.label!r} rewards {', '.join(missing)}, but the prompt never asks for it"
        fitting = "think_answer" if "<answer>" in missing else "think_boxed"
        yield f"{said}: name a template that does (prompt: {{template: {fitting}}}), or say it in system."


def _tags(described: Mapping[str, Any]) -> list[str]:
    """The opening tags that a format verifier wants to see."""
    options = described.get("options") or {}
    if described.get("name") == "think_format":
        names = [options.get("think") or "think", options.get("answer")]
    elif described.get("name") == "tag_count":
        names = list(options.get("tags") or ("think", "answer"))
    else:
        return []
    tags = [f"<{name}>" for name in names if name]
    return tags[1:] if options.get("prefilled") else tags

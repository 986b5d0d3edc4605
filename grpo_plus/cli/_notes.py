"""Notes on a command line."""

from typing import TYPE_CHECKING

from grpo_plus.recipe.notes import config_notes, weight_notes
from grpo_plus.recipe.options import changed_fields

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.recipe.recipe import Chosen


_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora", "use_dora")


def command_notes(parsed: "Parsed", weights: list[tuple[str, float]], chosen: "Chosen | None") -> list[str]:
    """One sentence for everything in a valid command line that is not read or may surprise.

    ``weights`` has every reward's name and weight. ``chosen`` is None for TRL's own estimator.
    """
    config = parsed.training
    return [*config_notes(config), *weight_notes(config, weights, chosen), *beside_notes(parsed)]


def prompt_notes(parsed: "Parsed") -> list[str]:
    """Notes on the prompt before any row is read; of the tokenizer only what is on this machine."""
    from grpo_plus.cli._template_notes import local_tokenizer, template_notes
    from grpo_verifiers.registry import is_reference

    name = parsed.model.model_name_or_path
    if not name or is_reference(name):
        return []
    return template_notes(parsed.training, parsed.prompt, name, local_tokenizer(name))


def beside_notes(parsed: "Parsed") -> list[str]:
    """Notes on the options beside the training config."""
    given = [] if parsed.model.use_peft else changed_fields(parsed.model, _OF_ADAPTERS)
    return [f"{name} ({getattr(parsed.model, name)!r}) is not read: use_peft is false." for name in given]

"""Notes on a command line."""

from typing import TYPE_CHECKING

from grpo_plus.recipe.notes import config_notes, weight_notes
from grpo_plus.recipe.unread import MODEL_NOTES, Unread, unread_notes

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.recipe.recipe import Chosen


def command_notes(parsed: "Parsed", weights: list[tuple[str, float]], chosen: "Chosen | None") -> list[str]:
    """One sentence for everything in a valid command line that is not read or may surprise.

    ``weights`` has every reward's name and weight. ``chosen`` is None for TRL's own estimator.
    """
    config = parsed.training
    return [*config_notes(config), *weight_notes(config, weights, chosen), *beside_notes(parsed)]


def prompt_notes(parsed: "Parsed") -> list[str]:
    """Notes on the prompt before any row is read; of the tokenizer only what is on this machine."""
    from grpo_plus.cli._template_notes import local_tokenizer, template_notes
    from grpo_plus.recipe.options import mapping
    from grpo_verifiers.registry import is_reference

    name = parsed.model.model_name_or_path
    if not name or is_reference(name):
        return []
    prompt = mapping("prompt", parsed.script.prompt)
    return template_notes(parsed.training, prompt, name, local_tokenizer(name))


def beside_notes(parsed: "Parsed") -> list[str]:
    """Notes on the options beside the training config: model and data."""
    script, mixture, config = parsed.script, parsed.mixture, parsed.training
    measured = isinstance(script.measure, dict) and "split" not in script.measure
    evaluates = str(getattr(config.eval_strategy, "value", config.eval_strategy)) != "no"
    data = (
        Unread("dataset_config dataset_streaming", lambda _: bool(mixture.datasets), "datasets names the data"),
        Unread(
            "dataset_test_split",
            lambda _: not (evaluates or measured),
            "nothing is evaluated (eval_strategy, measure)",
        ),
        Unread("ignore_bias_buffers", lambda _: True, "neither TRL nor this project looks at it"),
    )
    mixed = (Unread("streaming test_split_size", lambda _: not mixture.datasets, "datasets is empty"),)
    return [
        *unread_notes(parsed.model, MODEL_NOTES),
        *unread_notes(script, data),
        *unread_notes(mixture, mixed),
    ]

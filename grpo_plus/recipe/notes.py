"""Notes on valid configs that may surprise."""

from typing import Any

from grpo_plus.recipe.choice import Choice
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.recipe.table import parts_of
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.rules import broken_rules

logger = get_logger("grpo_plus")


def config_notes(config: Any) -> list[str]:
    """One sentence for each surprise; for `explain` and for the log at the start of training."""
    choice = Choice(config, recipe_of(config))
    return broken_rules(parts_of(choice), choice, notes=True)


def say_notes(config: Any) -> None:
    """Log the notes on the main process."""
    if config.process_index == 0:
        for note in config_notes(config):
            logger.warning("note: %s", note)

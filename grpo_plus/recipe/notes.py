"""Notes on valid configs that may surprise."""

from collections.abc import Sequence
from typing import Any

from grpo_plus.advantages import unread_weights
from grpo_plus.recipe.advantage import equivalent_advantage
from grpo_plus.recipe.choice import Choice
from grpo_plus.recipe.recipe import Chosen, recipe_of
from grpo_plus.recipe.table import parts_of
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.rules import broken_rules

logger = get_logger("grpo_plus")


def config_notes(config: Any) -> list[str]:
    """One sentence for each surprise; for `explain` and for the log at the start of training."""
    choice = Choice(config, recipe_of(config))
    return broken_rules(parts_of(choice), choice, notes=True)


def say_notes(config: Any, weights: Sequence[tuple[str, float]], chosen: Chosen | None) -> None:
    """Log the notes on the main process."""
    if config.process_index == 0:
        for note in [*config_notes(config), *weight_notes(config, weights, chosen)]:
            logger.warning("note: %s", note)


def weight_notes(config: Any, weights: Sequence[tuple[str, float]], chosen: Chosen | None) -> list[str]:
    """One sentence for each (reward, weight) of the run that changes no advantage; None stands for TRL's estimator."""
    if all(weight in {0, 1} for _, weight in weights):
        return []
    part, keywords = equivalent_advantage(config) if chosen is None else chosen
    title = "TRL's own advantages" if chosen is None else f"those of the {chosen[0].title}"
    idle = unread_weights(part, [weight for _, weight in weights], **keywords)
    return [
        f"the weight {weight:g} of {name!r} changes nothing: {title} would be the same with another."
        for place, (name, weight) in enumerate(weights)
        if place in idle and weight not in {0, 1}  # a reward of weight 0 is there to be looked at
    ]

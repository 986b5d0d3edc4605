"""A trainer with the parts of this package, as the record, the model card and the measurements see it."""

from typing import Any, Protocol

from grpo_plus.objectives import Objective
from grpo_plus.recipe.recipe import Chosen, Recipe
from grpo_plus.trl.host import Host


class RunHost(Host, Protocol):
    """Attributes of `GRPOPlusTrainer` in addition to TRL's.

    ``card_facts`` are the caller's rows of the model card, by name. ``command`` has the settings of a command line that
    are not in the config; empty from Python.
    """

    card_facts: dict[str, Any]
    command: dict[str, Any]
    pipeline: Any
    recipe: Recipe

    @property
    def estimator(self) -> Chosen | None:
        """The estimator that runs and its keywords; None for TRL's own."""

    @property
    def objective(self) -> Objective | None:
        """The objective; None for TRL's own loss."""

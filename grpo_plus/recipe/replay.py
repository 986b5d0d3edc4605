"""Replayed groups beside the rest of a config: what does not correct for them, and what is said of them."""

from typing import Any

from grpo_plus.objectives.ratio_use import reads_old_logps
from grpo_plus.recipe.forms import name_of
from grpo_plus.recipe.recipe import Recipe


def replay_problems(config: Any, recipe: Recipe) -> list[str]:
    """Parts that would take groups of earlier policies for those of the present one."""
    if recipe.dead_groups.name != "replay":
        return []
    problems = []
    if recipe.objective is not None and not reads_old_logps(recipe.objective):
        problems.append(
            f"dead_groups is 'replay', but the objective {recipe.objective.name!r} reads no log-probabilities of the "
            "policy that drew, so nothing would correct for groups that an earlier one drew: choose an objective with "
            "a ratio ('grpo', say), or dead_groups 'resample'."
        )
    if recipe.selection is not None and recipe.selection.weighted:
        problems.append(
            f"dead_groups is 'replay', but selection is {recipe.names['selection']!r} with weights, which are those of "
            "the prompts of one batch, and make up for no bias of replay's: set its weighted to false, or "
            "dead_groups to 'resample' or 'roulette'."
        )
    if config.sync_ref_model and config.beta:
        problems.append(
            "dead_groups is 'replay', but sync_ref_model is true: replayed groups keep the log-probabilities of the "
            "reference that there was. Remove sync_ref_model, or set dead_groups to 'resample'."
        )
    return problems


def replay_notes(config: Any) -> list[str]:
    """That it is biased."""
    if name_of(config, "dead_groups") != "replay":
        return []
    biased = "dead_groups 'replay' is biased: a bounded ratio makes up in part for groups of earlier policies"
    return [f"{biased}, and their prompts count more often. Each generation batch is scored once more."]

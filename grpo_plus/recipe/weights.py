"""The rewards of a run by name, with their weights, and weights that do not fit them."""

from collections.abc import Sequence

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.reward_model_options import NAME


def named_weights(recipe: Recipe, functions: Sequence[str]) -> list[tuple[str, float]]:
    """Name and weight of every reward, in the order of the reward table.

    ``functions`` names the reward functions and models, which come before the verifiers. A reward model that rewards is
    the last.
    """
    learned = [recipe.reward_model.weight] if recipe.reward_model is not None and recipe.reward_model.rewards else []
    names = [*functions, *(part.label for part in recipe.verifiers), *(NAME for _ in learned)]
    own = [*(None for _ in functions), *(part.weight for part in recipe.verifiers), *learned]
    weights = recipe.reward_weights or ()
    weights = weights if len(weights) == len(names) else (1.0,) * len(names)
    return [
        (name, float(weight if mine is None else mine)) for name, weight, mine in zip(names, weights, own, strict=True)
    ]


def weight_problems(recipe: Recipe, functions: Sequence[str]) -> list[str]:
    """A number of ``reward_weights`` that differs from the number of rewards."""
    if recipe.reward_weights is None or not (recipe.verifiers or recipe.reward_model):
        return []
    weights, names = list(recipe.reward_weights), [name for name, _ in named_weights(recipe, functions)]
    if len(weights) == len(names):
        return []
    counts = f"reward_weights holds {len(weights)} weights ({weights}), but there are {len(names)} rewards"
    return [
        f"{counts}, in this order: {', '.join(names)}. Give one for each, or let the verifiers' entries have weights."
    ]


def idle_problems(recipe: Recipe, functions: Sequence[str]) -> list[str]:
    """Rewards that all weigh 0, unless an estimator learns from steps, or an environment rewards."""
    named = named_weights(recipe, functions)
    environments = recipe.environments.values()
    rewarded = any(part.rewards for part in environments)
    if recipe.step_sources is not None:
        rewarded = rewarded or not recipe.own_turns or any(part.turn_rewards for part in environments)
    if rewarded or not (recipe.verifiers or recipe.reward_weights) or any(weight for _, weight in named):
        return []
    listed = ", ".join(name for name, _ in named)
    return [f"every reward ({listed}) has weight 0, so nothing teaches. Give one a weight."]

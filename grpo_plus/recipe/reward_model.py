"""The reward model of a config: its options with their defaults, and every problem of the choice."""

from collections.abc import Sequence
from pathlib import Path

from grpo_plus.checkpoints.reward_model import read_kind
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.reward_model_options import NAME, WEIGHT, RewardModelOptions
from grpo_plus.recipe.weights import named_weights


def weight_among(weights: Sequence[float] | None) -> float | None:
    """The weight that runs where the options have none; None for the 0 that is refused."""
    if weights is None:
        return WEIGHT
    return (weights[-1] if weights else None) or None


def start_problems(options: RewardModelOptions | None) -> list[str]:
    """A folder that holds no reward model, or another kind than the options say."""
    if options is None or options.start is None:
        return []
    where = f"reward_model start is {options.start!r}"
    try:
        kind = read_kind(Path(options.start))
    except ValueError as error:
        return [f"{where}, {error}: name a folder that trl reward, or a run, has written."]
    problems = []
    if kind.head != options.head:
        problems.append(f"{where}, whose head is {kind.head!r}, but head is {options.head!r}: set head: {kind.head}.")
    if options.on not in (None, kind.on):
        problems.append(f"{where}, which is on {kind.on!r}, but on is {options.on!r}: set on: {kind.on}, or remove on.")
    return problems


def step_giver(recipe: Recipe) -> str:
    """The label of the verifier whose steps a process head learns."""
    assert recipe.reward_model is not None
    labels = [label for label, gives in recipe.step_givers.items() if gives is not False]
    return (recipe.sure_givers or labels)[0]


def name_problems(functions: Sequence[str]) -> list[str]:
    """A reward whose column could not be told from that of the reward model."""
    if NAME not in functions:
        return []
    which = "a reward function, or a reward model by its folder, is named"
    return [f"{which} {NAME!r}, which is the name of the column of reward_model: give it another name."]


def label_problems(recipe: Recipe, functions: Sequence[str]) -> list[str]:
    """Pairs that nothing could order: every other reward weighs 0, or there is none."""
    options = recipe.reward_model
    if options is None or options.head == "process":
        return []
    others = named_weights(recipe, functions)[: -1 if options.rewards else None]
    if any(weight for _, weight in others):
        return []
    listed = ", ".join(name for name, _ in others)
    why = f"every other reward ({listed}) has weight 0" if others else "there is no other reward"
    return [f"reward_model learns from pairs that other rewards order, but {why}: give a verifier a weight."]

"""The reward model of a config: its options with their defaults, and every problem of the choice."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.weights import named_weights
from grpo_plus.reward_model.kind import read_kind
from grpo_plus.reward_model.options import NAME, WEIGHT, RewardModelOptions


def with_weight(options: RewardModelOptions, weights: Sequence[float] | None) -> tuple[RewardModelOptions, list[str]]:
    """The options with the weight that runs, beside the ``reward_weights`` of the config."""
    if weights is None:
        return replace(options, weight=WEIGHT if options.weight is None else options.weight), []
    if options.weight:
        text = f"weights are given in both reward_weights ({weights}) and reward_model (weight {options.weight:g})"
        return options, [f"{text}: keep one of the two."]
    if options.weight is None and not (weights and weights[-1]):
        text = f"reward_weights ({weights}) has 0 in the last place, which is that of the reward model"
        return options, [f"{text}: set reward_model weight to 0 and leave its place out, or give it a weight."]
    return (options if options.weight == 0 else replace(options, weight=weights[-1])), []


def reward_model_problems(recipe: Recipe) -> list[str]:
    """Options that exclude each other, or that the rest of the config leaves without a meaning."""
    options = recipe.reward_model
    if options is None:
        return []
    problems = []
    labels = [part.label for part in (*recipe.verifiers, *recipe.eval_verifiers)]
    if NAME in labels:
        problems.append(f"the verifier label {NAME!r} is the name of the reward model's column: give it another label.")
    if options.head == "process":
        problems += _step_problems(recipe)
    return problems + _start_problems(options)


def _start_problems(options: RewardModelOptions) -> list[str]:
    """A folder that holds no reward model, or another kind than the options say."""
    if options.start is None:
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


def _step_problems(recipe: Recipe) -> list[str]:
    """Verifiers that give no steps to label, or several that do."""
    givers = {part.label: part.gives_steps for part in recipe.verifiers}
    sure = [label for label, gives in givers.items() if gives]
    remedy = "such as {name: math_steps, weight: 0}"
    if len(sure) > 1:
        return [f"reward_model head is 'process', and several verifiers give steps: {', '.join(sure)}. Keep one."]
    if all(gives is False for gives in givers.values()):
        return [f"reward_model head is 'process', but no verifier gives steps to learn from. Add one, {remedy}."]
    if not sure and len(givers) > 1:
        return ["reward_model head is 'process', but no verifier is known to give steps. Declare it of one."]
    return []


def step_giver(recipe: Recipe) -> str:
    """The label of the verifier whose steps a process head learns."""
    assert recipe.reward_model is not None
    labels = [part.label for part in recipe.verifiers if part.gives_steps is not False]
    sure = [part.label for part in recipe.verifiers if part.gives_steps]
    return (sure or labels)[0]


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

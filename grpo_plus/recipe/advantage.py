"""The estimator of a config, the source of its steps, and every problem of the choice."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_plus.advantages.checking import parts_of as leaves_of
from grpo_plus.recipe.outcome import Reward, outcome_problems, source_of, with_outcome_weight
from grpo_plus.recipe.recipe import Chosen, Entry, Recipe
from grpo_plus.recipe.weights import named_weights
from grpo_verifiers.errors import VerifierError
from grpo_verifiers.errors.messages import unknown


def equivalent_advantage(config: Any) -> tuple[str, dict[str, Any]]:
    """The name and keywords of the estimator that equals TRL's own fields."""
    if config.multi_objective_aggregation == "normalize_then_sum":
        return "gdpo", {}
    scale = {True: "group", False: "none"}.get(config.scale_rewards, config.scale_rewards)
    return {"group": ("zscore", {}), "batch": ("zscore", {"scale": "batch"}), "none": ("center", {})}[scale]


def parts_of(chosen: Chosen | None) -> tuple[Chosen, ...]:
    """The estimators that compute something: the parts of a mix, or the estimator itself."""
    if chosen is None:
        return ()
    try:
        return tuple(Chosen(*part) for part in leaves_of(*chosen))
    except (
        VerifierError,
        TypeError,
        ValueError,
        AttributeError,
    ):  # wrong parts are reported where the keywords are checked
        return ()


def running_advantage(
    recipe: Recipe,
    givers: Mapping[str, bool | None],
    functions: Sequence[str] = (),
    *,
    scorer: bool = False,
    owned: Sequence[str] = (),
) -> tuple[Chosen | None, list[str]]:
    """The estimator with the outcome weight that follows from all rewards; reward weights that nothing would read.

    ``givers`` maps the label of every verifier to whether it gives steps; with ``scorer`` a step scorer gives them, and
    no verifier. ``functions`` names the reward functions and models, which stand before the verifiers, and ``owned``
    rewards of environments that are not the recipe's.
    """
    if recipe.advantage is None or recipe.step_sources is None:
        return recipe.advantage, []
    rewards = _rewards(recipe, dict.fromkeys(givers, False) if scorer else givers, functions, owned)
    source = None if scorer else source_of(rewards, recipe.step_source)
    chosen = with_outcome_weight(recipe.advantage, rewards, source)
    return chosen, outcome_problems(recipe.advantage, rewards, source)


def _rewards(
    recipe: Recipe, givers: Mapping[str, bool | None], functions: Sequence[str] = (), owned: Sequence[str] = ()
) -> list[Reward]:
    """Every reward with its weight."""
    listed = [Reward(name, weight, givers.get(name, False)) for name, weight in named_weights(recipe, functions)]
    environments = [*(part.label for part in recipe.environments.values() if part.rewards), *owned]
    return [*listed, *(Reward(label, 1.0, owned=True) for label in dict.fromkeys(environments))]


def step_problems(recipe: Recipe, *, scorer: bool) -> list[str]:
    """Step scores without a source, and sources (the trainer's step scorer is one) that nothing reads."""
    if recipe.step_sources is None or recipe.own_turns:
        why = "takes the turns as the environment rewards them" if recipe.own_turns else "reads no steps"
        text = f"step_scorer is given, but the advantage estimator {why}: remove it, or set advantage: process."
        return [text] if scorer else []
    givers, named, aggregates = recipe.step_givers, recipe.step_source, recipe.step_aggregates
    if scorer and named is not None:
        return [f"steps_from ({named!r}) and step_scorer both say where step scores come from: keep one of the two."]
    if scorer and aggregates:
        return [f"advantage aggregate is {aggregates[0]!r}, but step_scorer rewards nothing: remove it."]
    if named in {part.label for part in recipe.environments.values()} - set(givers):
        text = f"advantage steps_from: {named!r} is the environment, whose get_turn_reward is read by turn_reward"
        return [f"{text}: add {{name: turn_reward, weight: 0}} to verifiers, and set steps_from: turn_reward."]
    if named is not None and givers and named not in givers:
        return [f"advantage steps_from: {unknown('verifier label', named, list(givers))}"]
    return [] if scorer else _giver_problems(named, givers)


def _giver_problems(named: str | None, givers: Mapping[str, bool | None]) -> list[str]:
    """Known before the run: the named verifier gives no steps, several give steps, or none does."""
    sure = [label for label, gives in givers.items() if gives]
    remedy = "such as {name: math_steps, weight: 0}"
    if named is not None and named in givers:
        if givers[named] is False:
            known = f": {', '.join(sure)} does" if sure else f". Add a verifier that does, {remedy}"
            return [f"advantage steps_from: the verifier {named!r} gives no step scores{known}."]
        return []
    if len(sure) > 1:
        return [f"several verifiers give steps: {', '.join(sure)}. Name one: advantage: {{name: …, steps_from: …}}."]
    if all(gives is False for gives in givers.values()):
        listed = f" ({', '.join(givers)})" if givers else ""
        text = f"the advantage estimator needs step scores, but no verifier gives any{listed}"
        return [f"{text}: add one that does, {remedy}, or give the trainer a step_scorer."]
    return []


def advantage_problems(config: Any, recipe: Recipe, entries: Sequence[Entry]) -> list[str]:
    """Sources and weights of steps that the estimator cannot go with."""
    return [*_step_source_problems(recipe, entries), *_outcome_problems(config, recipe)]


def _step_source_problems(recipe: Recipe, entries: Sequence[Entry]) -> list[str]:
    sources, aggregates = recipe.step_sources or (), recipe.step_aggregates
    if len(sources) > 1:
        named = ", ".join(str(source) for source in sources)
        return [f"the parts of the mix take their steps from different verifiers ({named}): name one for all of them."]
    if len(aggregates) > 1:
        return [f"the parts of the mix aggregate the steps differently ({', '.join(aggregates)}): keep one for all."]
    return [
        f"advantage aggregate is {aggregates[0]!r} and the verifier {entry.label!r} has its own "
        f"({entry.kwargs['aggregate']!r}): keep one of the two."
        for entry in entries
        if aggregates and "aggregate" in entry.kwargs and (not any(sources) or entry.label in sources)
    ]


def _outcome_problems(config: Any, recipe: Recipe) -> list[str]:
    """Weights that nothing would read, whatever rewards the trainer adds."""
    built = len(recipe.verifiers) == len(config.verifiers)
    if recipe.advantage is None or recipe.step_sources is None or recipe.reward_weights is not None or not built:
        return []
    rewards = _rewards(recipe, recipe.step_givers)
    return outcome_problems(recipe.advantage, rewards, source_of(rewards, recipe.step_source), complete=False)

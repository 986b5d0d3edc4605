"""The rewards of a run: their weights, the steps that an estimator reads, and a reward model that learns from them.

A step estimator reads step scores; rewards reach it through ``outcome_weight`` alone. Unset, it is 1 if a reward other
than that of the steps' source has a weight, else 0. It is 0 too if another part of a mix reads the rewards.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_plus.advantages import Estimator, get_advantage, parameters_of
from grpo_plus.checkpoints.reward_model import read_kind
from grpo_plus.recipe.entries import VerifierEntry, VerifierPart
from grpo_plus.recipe.recipe import Chosen, Recipe
from grpo_plus.recipe.settings import REWARD_MODEL, RewardModelOptions
from grpo_verifiers import Verifier
from grpo_verifiers.errors.messages import unknown


def named_weights(recipe: Recipe, functions: Sequence[str]) -> list[tuple[str, float]]:
    """Name and weight of every reward, in the order of the reward table.

    ``functions`` names the reward functions and models, which come before the verifiers. A reward model that rewards is
    the last.
    """
    learned = [recipe.reward_model.weight] if recipe.reward_model is not None and recipe.reward_model.rewards else []
    names = [*functions, *(part.label for part in recipe.verifiers), *(REWARD_MODEL for _ in learned)]
    own = [*(None for _ in functions), *(part.weight for part in recipe.verifiers), *learned]
    weights = recipe.reward_weights or ()
    weights = weights if len(weights) == len(names) else (1.0,) * len(names)
    return [
        (name, float(weight if mine is None else mine)) for name, weight, mine in zip(names, weights, own, strict=True)
    ]


def adopt(recipe: Recipe, args: Any, reward_funcs: Any, processors: Any = None) -> tuple[Recipe, Any]:
    """Move the verifiers among a trainer's reward functions to those of the recipe; unless it is set, keep a record.

    They stay if their place counts (for ``reward_weights`` or ``processors``), if rows name their verifier, or if two
    labels are equal. A plain `GRPOConfig` trains as in TRL.
    """
    functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    own = [each for each in functions if isinstance(each, Verifier)]
    rest = [each for each in functions if not isinstance(each, Verifier)]
    if not own or not hasattr(args, "current_recipe"):
        return recipe, reward_funcs
    report = recipe.report if recipe.report_is_set else replace(recipe.report, record=True)
    parts = (*(VerifierPart(VerifierEntry(each.label, each.label), each) for each in own), *recipe.verifiers)
    stays = processors is not None or (args.reward_weights is not None and functions != [*rest, *own])
    if stays or recipe.verifier_column is not None or len({part.label for part in parts}) < len(parts):
        return replace(recipe, report=report), reward_funcs
    return replace(recipe, report=report, verifiers=parts), rest


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


@dataclass(frozen=True)
class WeightedReward:
    """One reward of a run.

    Attributes:
        gives_steps: its verdicts have steps; None: only a run shows it.
        owned: an environment's own, whose weight is 1 and cannot be set.
    """

    label: str
    weight: float = 1.0
    gives_steps: bool | None = False
    owned: bool = False

    def __str__(self) -> str:
        return f"{self.label!r} (weight {self.weight:g})"


@dataclass(frozen=True)
class _Part:
    """An estimator alone, or as a part of a mix with its weight."""

    name: str
    estimator: Estimator
    keywords: Mapping[str, Any]
    weight: float = 1.0

    @property
    def outcome_weight(self) -> float | None:
        """The value that is set, or the default of a plug-in's estimator."""
        weight: float | None = self.keywords.get("outcome_weight")
        if weight is None and self.estimator.per == "step":
            weight = parameters_of(self.estimator)["outcome_weight"].default
        return weight

    @property
    def reads_rewards(self) -> bool:
        """True if rewards count here."""
        return self.weight != 0 and (self.estimator.per != "step" or bool(self.outcome_weight))


def source_of(rewards: Sequence[WeightedReward], named: str | None = None) -> str | None:
    """The label of the reward whose verifier gives the steps; None if it is not certain."""
    if named is not None:
        return named
    sure = [reward.label for reward in rewards if reward.gives_steps]
    possible = sure or [reward.label for reward in rewards if reward.gives_steps is None]
    return possible[0] if len(possible) == 1 else None


def with_outcome_weight(chosen: Chosen, rewards: Sequence[WeightedReward], source: str | None) -> Chosen:
    """The estimator with a number for an unset ``outcome_weight``.

    ``source`` is the result of `source_of`; None with a step scorer, which rewards nothing.
    """
    estimator, keywords = chosen
    parts = _parts(chosen)
    number = 0.0 if any(part.reads_rewards for part in parts) or not _outcomes(rewards, source) else 1.0
    resolved = dict(keywords)
    for part in parts:
        if part.estimator.per == "step" and part.outcome_weight is None:
            filled = {**part.keywords, "outcome_weight": number}
            resolved = {**resolved, part.name: filled} if estimator.per == "parts" else filled
    return Chosen(estimator, resolved)


def outcome_problems(
    chosen: Chosen, rewards: Sequence[WeightedReward], source: str | None, *, complete: bool = True
) -> list[str]:
    """Reward weights that nothing would read, with keywords as they are set and the source that `source_of` gave.

    The list of rewards is not ``complete`` while a trainer may get more.
    """
    parts = _parts(chosen)
    stepwise = [part for part in parts if part.estimator.per == "step"]
    if complete and rewards and not any(reward.weight != 0 for reward in rewards):
        listed = ", ".join(reward.label for reward in rewards)
        return [
            f"outcome_weight of the advantage estimator {part.name!r} is {part.keywords['outcome_weight']!r}, but no "
            f"reward has a weight ({listed}), so there is no outcome: give one a weight, or remove outcome_weight."
            for part in stepwise
            if part.keywords.get("outcome_weight")
        ]
    if not stepwise or any(part.reads_rewards for part in parts):
        return []
    # An environment's own reward has no weight to set: an outcome_weight of 0 is the way to leave it out.
    outcomes = [reward for reward in _outcomes(rewards, source) if not reward.owned]
    unclear = [reward for reward in outcomes if source is None and reward.gives_steps is None]
    if len(unclear) == 1:  # it may be the source
        outcomes.remove(unclear[0])
    if outcomes:
        refused = [part.name for part in parts if part.outcome_weight == 0 and part.weight != 0]
        return [
            f"outcome_weight of the advantage estimator {part!r} is 0, and so the reward{'s' * (len(outcomes) > 1)} "
            f"{', '.join(map(str, outcomes))} would be ignored. Remove outcome_weight (they then count once) or set "
            "another one; a reward that should only be logged has weight 0."
            for part in refused
        ]
    # A weight of 1 may be written as well as left out; any other weight has a purpose.
    return [
        f"the reward {reward} gives the steps, of which the advantage estimator {chosen[0].name!r} takes z-scores for "
        "any weight. Set weight: 0, or outcome_weight: 1 to add the z-score of the reward itself."
        for reward in rewards
        if complete and reward.label == source and reward.weight not in (0, 1)
    ]


def _parts(chosen: Chosen) -> list[_Part]:
    estimator, keywords = chosen
    if estimator.per != "parts":
        return [_Part(estimator.name, estimator, keywords)]
    weights: Mapping[str, float] = keywords.get("parts", {})
    return [_Part(name, get_advantage(name), keywords.get(name) or {}, weight) for name, weight in weights.items()]


def _outcomes(rewards: Iterable[WeightedReward], source: str | None) -> list[WeightedReward]:
    return [reward for reward in rewards if reward.label != source and reward.weight != 0]


def equivalent_advantage(config: Any) -> tuple[str, dict[str, Any]]:
    """The name and keywords of the estimator that equals TRL's own fields."""
    if config.multi_objective_aggregation == "normalize_then_sum":
        return "gdpo", {}
    scale = {True: "group", False: "none"}.get(config.scale_rewards, config.scale_rewards)
    return {"group": ("zscore", {}), "batch": ("zscore", {"scale": "batch"}), "none": ("center", {})}[scale]


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
    no verifier. ``functions`` names the reward functions and models, which come before the verifiers, and ``owned``
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
) -> list[WeightedReward]:
    listed = [
        WeightedReward(name, weight, givers.get(name, False)) for name, weight in named_weights(recipe, functions)
    ]
    environments = [*(part.label for part in recipe.environments.values() if part.rewards), *owned]
    return [*listed, *(WeightedReward(label, 1.0, owned=True) for label in dict.fromkeys(environments))]


def step_problems(recipe: Recipe, *, scorer: bool) -> list[str]:
    """Step scores without a source, and sources (the trainer's step scorer is one) that nothing reads."""
    if recipe.step_sources is None or recipe.own_turns:
        why = "takes the turns as the environment rewards them" if recipe.own_turns else "reads no steps"
        text = f"step_scorer is set, but the advantage estimator {why}: remove it, or set advantage: process."
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
    """Certain before the run: the named verifier gives no steps, several give steps, or none does."""
    sure = [label for label, gives in givers.items() if gives]
    remedy = "such as {name: math_steps, weight: 0}"
    if named is not None and named in givers:
        if givers[named] is False:
            note = f": {', '.join(sure)} does" if sure else f". Add a verifier that does, {remedy}"
            return [f"advantage steps_from: the verifier {named!r} gives no step scores{note}."]
        return []
    possible = sure or [label for label, gives in givers.items() if gives is None]
    if len(possible) > 1:
        return [f"several verifiers give steps, or may: {', '.join(possible)}. Name one: set steps_from of advantage."]
    if all(gives is False for gives in givers.values()):
        listed = f" ({', '.join(givers)})" if givers else ""
        text = f"the advantage estimator needs step scores, but no verifier gives any{listed}"
        return [f"{text}: add one that does, {remedy}, or give the trainer a step_scorer."]
    return []


def advantage_problems(config: Any, recipe: Recipe, entries: Sequence[VerifierEntry]) -> list[str]:
    """Sources and weights of steps that contradict the estimator, for any rewards that the trainer adds."""
    problems = _step_source_problems(recipe, entries)
    built = len(recipe.verifiers) == len(config.verifiers)
    if recipe.advantage is None or recipe.step_sources is None or recipe.reward_weights is not None or not built:
        return problems
    rewards = _rewards(recipe, recipe.step_givers)
    source = source_of(rewards, recipe.step_source)
    return [*problems, *outcome_problems(recipe.advantage, rewards, source, complete=False)]


def _step_source_problems(recipe: Recipe, entries: Sequence[VerifierEntry]) -> list[str]:
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
    """The label of the verifier that gives steps, where none is named."""
    return (recipe.sure_givers or [label for label, gives in recipe.step_givers.items() if gives is not False])[0]


def name_problems(functions: Sequence[str]) -> list[str]:
    """A reward whose column has the name of the reward model's."""
    if REWARD_MODEL not in functions:
        return []
    which = "a reward function, or a reward model by its folder, is named"
    return [f"{which} {REWARD_MODEL!r}, which is the name of the column of reward_model: give it another name."]


def label_problems(recipe: Recipe, functions: Sequence[str]) -> list[str]:
    """Pairs that nothing could order: every other reward weighs 0, or there is none."""
    options = recipe.reward_model
    if options is None or options.head == "process":
        return []
    rest = named_weights(recipe, functions)[: -1 if options.rewards else None]
    if any(weight for _, weight in rest):
        return []
    listed = ", ".join(name for name, _ in rest)
    why = f"every other reward ({listed}) has weight 0" if rest else "there is no other reward"
    return [f"reward_model learns from pairs that other rewards order, but {why}: give a verifier a weight."]

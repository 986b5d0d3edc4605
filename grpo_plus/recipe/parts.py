"""From the names in a config to the parts that run, and every problem of the choice before any model loads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from grpo_plus.recipe.built import built_problems
from grpo_plus.recipe.iterations import stop_problems
from grpo_plus.recipe.outcome import Reward, outcome_problems, source_of, with_outcome_weight
from grpo_plus.training.reference import refresh_problems
from grpo_verifiers.errors import PluginError, VerifierError
from grpo_verifiers.problems import Problem
from grpo_verifiers.suggest import unknown

if TYPE_CHECKING:
    from grpo_plus.advantages import Estimator
    from grpo_plus.objectives import Objective

ADVANTAGE_FIELDS = {
    "scale_rewards": "the estimator itself: zscore, center, or zscore with advantage_kwargs {scale: batch}",
    "multi_objective_aggregation": "the estimator gdpo",
}
"""Fields of TRL that an estimator of ours replaces, and what says the same here."""

OBJECTIVE_FIELDS = {
    "loss_type": "objective",
    "epsilon": "objective_kwargs {epsilon_low: …}",
    "epsilon_high": "objective_kwargs {epsilon_high: …} (epsilon_max for cispo)",
    "delta": "objective_kwargs {delta: …}",
    "importance_sampling_level": "objective_kwargs {ratio: …}",
    "sapo_temperature_neg": "objective_kwargs {temperature_neg: …} of sapo",
    "sapo_temperature_pos": "objective_kwargs {temperature_pos: …} of sapo",
    "vespo_k_pos": "objective_kwargs {k_pos: …} of vespo",
    "vespo_lambda_pos": "objective_kwargs {lambda_pos: …} of vespo",
    "vespo_k_neg": "objective_kwargs {k_neg: …} of vespo",
    "vespo_lambda_neg": "objective_kwargs {lambda_neg: …} of vespo",
}
"""Fields of TRL that an objective of ours replaces, and what says the same here."""


def config_problems(config: Any) -> list[Problem]:
    """Everything that is wrong with our part of a config."""
    checks: tuple[Callable[[Any], Sequence[Problem]], ...] = (
        _advantage_problems,
        _objective_problems,
        refresh_problems,
        _verifier_problems,
        _engine_problems,
        _rollout_problems,
        _record_problems,
        _weight_problems,
        built_problems,
    )
    problems: list[Problem] = []
    for check in checks:
        try:
            problems += check(config)
        except PluginError as error:
            problems.append(error)
    return problems


def resolve_advantage(config: Any) -> "tuple[Estimator, dict[str, Any]] | None":
    """The estimator that replaces TRL's advantages, and its keywords; None leaves TRL's.

    A KL term that acts on the rewards needs one in any case: then it is the one that TRL's fields amount to.
    """
    from grpo_plus.advantages import get_advantage

    if config.advantage is not None:
        return get_advantage(config.advantage), dict(config.advantage_kwargs or {})
    objective = resolve_objective(config)
    if objective is None or not objective.kl_in_reward:
        return None
    name, keywords = equivalent_advantage(config)
    return get_advantage(name), keywords


def running_advantage(
    config: Any, givers: Mapping[str, bool | None], functions: Sequence[str] = (), *, scorer: bool = False
) -> "tuple[tuple[Estimator, dict[str, Any]] | None, list[str]]":
    """What `resolve_advantage` gives, with the outcome weight that follows from all rewards; and ignored weights.

    Args:
        config: the config.
        givers: label of every verifier to whether it gives steps.
        functions: names of the reward functions and models, which stand before the verifiers.
        scorer: whether a step scorer gives the steps, and no verifier.
    """
    chosen = resolve_advantage(config)
    sources = step_sources(config)
    if chosen is None or sources is None:
        return chosen, []
    rewards = _rewards(config, dict.fromkeys(givers, False) if scorer else givers, functions)
    source = None if scorer else source_of(rewards, next(filter(None, sources), None))
    return with_outcome_weight(chosen, rewards, source), outcome_problems(chosen, rewards, source)


def step_givers(config: Any) -> dict[str, bool | None]:
    """Label of every verifier of a config to whether it gives steps; None where only running it can tell."""
    from grpo_plus.recipe.entries import read_entries

    entries, _ = read_entries(config.verifiers or [])
    return {entry.label: entry.build(config.plugins or ()).gives_steps for entry in entries}


def _rewards(config: Any, givers: Mapping[str, bool | None], functions: Sequence[str] = ()) -> list[Reward]:
    """Everything that rewards completions, and by which weight."""
    from grpo_plus.recipe.entries import read_entries

    labels = [*functions, *givers]
    own = {entry.label: entry.weight for entry in read_entries(config.verifiers or [])[0]}
    weights = config.reward_weights or [own.get(label) for label in labels]
    return [Reward(label, weight, givers.get(label, False)) for label, weight in zip(labels, weights, strict=False)]


def estimator_parts(config: Any) -> "list[tuple[Estimator, dict[str, Any]]]":
    """The estimators that compute something, each with its keywords: those of a mix, or the one itself."""
    chosen = resolve_advantage(config)
    if chosen is None:
        return []
    estimator, keywords = chosen
    if estimator.per != "parts":
        return [chosen]
    from grpo_plus.advantages import get_advantage

    return [(get_advantage(name), dict(keywords.get(name, {}))) for name in keywords.get("parts", {})]


def advantage_per(config: Any) -> str:
    """What the estimator gives one number for: completion, step or token."""
    if config.advantage is None:
        return "completion"
    try:
        kinds = {part.per for part, _ in estimator_parts(config)}
    except (VerifierError, TypeError, AttributeError):  # wrong parts are reported where the estimator is checked
        return "completion"
    return next((kind for kind in ("step", "token") if kind in kinds), "completion")


def step_sources(config: Any) -> list[str | None] | None:
    """Labels of the verifiers that step scores are to come from (None: whichever gives them); None: no steps needed."""
    sources = [keywords.get("steps_from") for part, keywords in estimator_parts(config) if part.per == "step"]
    return list(dict.fromkeys(sources)) if sources else None


def step_aggregates(config: Any) -> list[str]:
    """How the reward of the verifier that gives the steps is to be made from them; empty: as the verifier does it."""
    found = [keywords.get("aggregate") for part, keywords in estimator_parts(config) if part.per == "step"]
    return list(dict.fromkeys(filter(None, found)))


def step_problems(
    sources: list[str | None] | None,
    *,
    scorer: bool,
    givers: Mapping[str, bool | None],
    aggregates: Sequence[str] = (),
) -> list[str]:
    """Whether step scores come from somewhere when they are needed, and from nowhere when they are not.

    Args:
        sources: what `step_sources` gave.
        aggregates: what `step_aggregates` gave.
        scorer: whether the trainer was given a step scorer.
        givers: label of every verifier to whether it gives steps; None where only running it can tell.
    """
    if sources is None:
        text = "step_scorer is given, but the advantage estimator reads no steps: remove it, or set advantage: process."
        return [text] if scorer else []
    named = next(filter(None, sources), None)
    if scorer and named is not None:
        return [f"steps_from ({named!r}) and step_scorer both say where step scores come from: keep one of the two."]
    if scorer and aggregates:
        return [f"advantage_kwargs aggregate is {aggregates[0]!r}, but step_scorer rewards nothing: remove it."]
    if not scorer and not givers:
        text = "the advantage estimator needs step scores, but nothing gives any"
        return [f"{text}: add a verifier that scores steps, or give the trainer a step_scorer."]
    if named is not None and named not in givers:
        return [f"advantage_kwargs steps_from: {unknown('verifier label', named, list(givers))}"]
    return [] if scorer else _giver_problems(named, givers)


def _giver_problems(named: str | None, givers: Mapping[str, bool | None]) -> list[str]:
    """What is known before anything runs: a verifier named that gives no steps, several that do, or none."""
    sure = [label for label, gives in givers.items() if gives]
    remedy = "such as {name: math_steps, weight: 0}"
    if named is not None:
        if givers[named] is False:
            known = f": {', '.join(sure)} does" if sure else f". Add a verifier that does, {remedy}"
            return [f"advantage_kwargs steps_from: the verifier {named!r} gives no step scores{known}."]
        return []
    if len(sure) > 1:
        return [f"several verifiers give steps: {', '.join(sure)}. Name one in advantage_kwargs: {{steps_from: …}}."]
    if all(gives is False for gives in givers.values()):
        text = f"the advantage estimator needs step scores, but no verifier gives any ({', '.join(givers)})"
        return [f"{text}: add one that does, {remedy}."]
    return []


def resolve_objective(config: Any) -> "Objective | None":
    """The objective that replaces TRL's loss; None leaves TRL's."""
    if config.objective is None:
        return None
    from grpo_plus.objectives import build_objective

    return build_objective(
        config.objective,
        objective_keywords(config),
        beta=config.beta,
        use_bias_correction_kl=config.use_bias_correction_kl,
    )


def objective_keywords(config: Any) -> dict[str, Any]:
    """The objective's keywords; an empty mapping when none are set."""
    return dict(config.objective_kwargs or {})


def equivalent_advantage(config: Any) -> tuple[str, dict[str, Any]]:
    """The estimator that TRL's own fields amount to, by name and keywords."""
    if config.multi_objective_aggregation == "normalize_then_sum":
        return "gdpo", {}
    scale = {True: "group", False: "none"}.get(config.scale_rewards, config.scale_rewards)
    return {"group": ("zscore", {}), "batch": ("zscore", {"scale": "batch"}), "none": ("center", {})}[scale]


def changed_fields(config: Any, names: Sequence[str]) -> list[str]:
    """Those of the fields that are not at their default, in the order given; unknown ones are skipped."""
    fields = config.__dataclass_fields__
    return [name for name in names if name in fields and getattr(config, name) != _default(fields[name])]


def _default(spec: Any) -> Any:
    return spec.default if spec.default is not MISSING else spec.default_factory()


def _advantage_problems(config: Any) -> list[str]:
    if config.advantage is None:
        return _unread("advantage", config.advantage_kwargs) + _single_generation_problems(config)
    from grpo_plus.advantages import check_advantage_kwargs

    problems = check_advantage_kwargs(config.advantage, dict(config.advantage_kwargs or {}))
    if not problems:  # otherwise nobody knows what would run
        problems += _single_generation_problems(config) + _group_size_problems(config)
        problems += _step_source_problems(config) + _outcome_problems(config)
    for name in changed_fields(config, tuple(ADVANTAGE_FIELDS)):
        problems.append(
            f"{name} ({getattr(config, name)!r}) and advantage ({config.advantage!r}) both choose how rewards become "
            f"advantages. Remove {name}; what says the same is {ADVANTAGE_FIELDS[name]}."
        )
    return problems


def _single_generation_problems(config: Any) -> list[str]:
    """Why one completion a prompt cannot be trained on: whatever compares completions of a prompt has nothing to."""
    if config.num_generations != 1:
        return []
    from grpo_plus.advantages import advantages, get_advantage

    if config.advantage is None:
        what = "TRL's own advantages compare"
    elif any(part.group_relative for part, _ in estimator_parts(config)):
        what = f"the advantage estimator {config.advantage!r} compares"
    else:
        return []
    known = [entry.name for entry in advantages.entries() if entry.way != "entry point"]
    able = [name for name in known if (part := get_advantage(name)).per != "parts" and not part.group_relative]
    text = f"num_generations is 1: {what} completions of one prompt, so a single one has nothing to be compared with"
    remedy = f"advantage to one that compares none ({', '.join(able)})"
    return [f"{text}. Set num_generations to 2 or more (a divisor of the generation batch), or {remedy}."]


def _group_size_problems(config: Any) -> list[str]:
    """Estimators whose keywords ask for more completions of a prompt than there will be; of one, others tell."""
    count = config.num_generations
    return [
        f"num_generations is {count}, which is too few for the advantage estimator {part.name!r}: {text}."
        for part, keywords in estimator_parts(config)
        if count > 1 and part.check_size is not None and (text := part.check_size(keywords, count))
    ]


def _step_source_problems(config: Any) -> list[str]:
    sources = step_sources(config) or []
    if len(sources) > 1:
        named = ", ".join(str(source) for source in sources)
        return [f"the parts of the mix take their steps from different verifiers ({named}): name one for all of them."]
    aggregates = step_aggregates(config)
    if len(aggregates) > 1:
        return [f"the parts of the mix aggregate the steps differently ({', '.join(aggregates)}): keep one for all."]
    from grpo_plus.recipe.entries import read_entries

    entries, _ = read_entries(config.verifiers or [])
    return [
        f"advantage_kwargs aggregate is {aggregates[0]!r} and the verifier {entry.label!r} has its own "
        f"({entry.kwargs['aggregate']!r}): keep one of the two."
        for entry in entries
        if aggregates and "aggregate" in entry.kwargs and (not any(sources) or entry.label in sources)
    ]


def _outcome_problems(config: Any) -> list[str]:
    """Weights that nothing would read, as far as the config alone tells: a trainer may be given more rewards."""
    chosen, sources = resolve_advantage(config), step_sources(config)
    if chosen is None or sources is None or config.reward_weights is not None:
        return []
    try:
        rewards = _rewards(config, step_givers(config))
    except VerifierError:  # reported where verifiers are checked
        return []
    source = source_of(rewards, next(filter(None, sources), None))
    return outcome_problems(chosen, rewards, source, complete=False)


def _objective_problems(config: Any) -> Sequence[Problem]:
    if config.objective is None:
        unread = _unread("objective", config.objective_kwargs)
        return unread + _own_ratio_problems(config) + _length_problems(config)
    from grpo_plus.objectives.compose import objective_problems
    from grpo_plus.recipe.objective_fields import field_problems

    problems = objective_problems(
        config.objective,
        objective_keywords(config),
        beta=config.beta,
        advantage_per=advantage_per(config),
        use_bias_correction_kl=config.use_bias_correction_kl,
    )
    if not problems:
        objective = resolve_objective(config)
        assert objective is not None
        problems += field_problems(objective, config) + _length_problems(config)
        if objective.stop_fraction is not None:
            problems += stop_problems(config)
    for name in changed_fields(config, tuple(OBJECTIVE_FIELDS)):
        problems.append(
            f"{name} ({getattr(config, name)!r}) is TRL's and would be ignored, since objective is "
            f"{config.objective!r}. Remove {name}; what says the same is {OBJECTIVE_FIELDS[name]}."
        )
    return problems


def _own_ratio_problems(config: Any) -> list[str]:
    """TRL's ratio of a completion beside advantages of its parts: the same as `gspo`, which is refused with them."""
    per = advantage_per(config)
    if per == "completion" or config.importance_sampling_level == "token":
        return []
    text = f"importance_sampling_level is {config.importance_sampling_level!r}, one ratio a completion, which has no"
    why = f"{text} meaning with advantages per {per} (advantage {config.advantage!r})"
    return [f"{why}: set it to 'token', use objective 'gspo_token', or an advantage estimator per completion."]


def _length_problems(config: Any) -> list[str]:
    """Losses that divide by the longest length there can be, where completions may have any."""
    if config.max_completion_length is not None:
        return []
    objective = resolve_objective(config)
    if objective is None:
        divides, way = config.loss_type == "dr_grpo", ""
    else:
        reduce = objective.reduce
        divides = reduce.piece.name == "constant" and reduce.keywords.get("length") is None
        way = ", give the reduction its length"
    what = f"loss_type {config.loss_type!r}" if objective is None else f"the objective {config.objective!r}"
    text = f"max_completion_length is None, but {what} divides by it"
    return [f"{text}: set it{way}, or choose a loss that does not."] if divides else []


def _unread(owner: str, keywords: Any) -> list[str]:
    """Keywords whose owner is unset would be read by nobody."""
    if not keywords:
        return []
    field = f"{owner}_kwargs"
    text = f"{field} is {keywords!r}, but {owner} is unset, so nothing would read it"
    return [f"{text}: set {owner}, or remove {field}."]


def _verifier_problems(config: Any) -> Sequence[Problem]:
    if not config.verifiers and config.verifier_column is not None:
        return [f"verifier_column is {config.verifier_column!r}, but there are no verifiers to choose from."]
    if not config.verifiers and not config.eval_verifiers:
        return []
    from grpo_plus.recipe.entries import entry_problems

    return entry_problems(config)


def _rollout_problems(config: Any) -> list[str]:
    from grpo_plus.qlora.checks import rollout_problems

    return rollout_problems(config)


def _record_problems(config: Any) -> list[str]:
    steps = config.report_steps
    if steps and config.record is False:
        return [f"report_steps ({steps}) needs the record, but record is false: remove one of the two."]
    return []


def _weight_problems(config: Any) -> list[str]:
    """Weights of 0 for every reward. Those in the entries are for the trainer, which knows the reward functions too."""
    weights = config.reward_weights
    if not weights or any(weights) or advantage_per(config) == "step":
        return []
    return [f"reward_weights is {weights}: nothing is left to learn from. Give at least one reward a weight."]


def _engine_problems(config: Any) -> list[str]:
    tokens = config.engine_tokens_per_pass
    if tokens is not None and config.engine == "stock":
        return [f"engine_tokens_per_pass ({tokens}) needs the engine, but engine is 'stock': remove one."]
    return []

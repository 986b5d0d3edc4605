"""From the names in a config to its `Recipe`, and every problem of the choice before any model loads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from grpo_plus.advantages import advantages, get_advantage
from grpo_plus.advantages.checking import keyword_problems as estimator_problems
from grpo_plus.objectives import Objective, objectives
from grpo_plus.objectives.compose import compose_objective
from grpo_plus.recipe.advantage import advantage_problems, equivalent_advantage
from grpo_plus.recipe.advantage import parts_of as estimators_of
from grpo_plus.recipe.choice import Choice
from grpo_plus.recipe.critic_options import CriticOptions
from grpo_plus.recipe.entries import build_verifiers, read_entries, verifier_problems
from grpo_plus.recipe.forms import HEADS, named, read_form
from grpo_plus.recipe.monitor import choose_monitor, monitor_problems
from grpo_plus.recipe.recipe import Chosen, DeadGroups, Recipe, Selected, unit_of
from grpo_plus.recipe.reward_model import start_problems, weight_among
from grpo_plus.recipe.reward_model_options import RewardModelOptions
from grpo_plus.recipe.settings import DiagnosisOptions, EngineOptions, ReportOptions, RolloutOptions
from grpo_plus.recipe.table import parts_of
from grpo_plus.recipe.tools import choose_tools
from grpo_plus.selection import selections
from grpo_plus.selection.checking import keyword_problems as selection_problems
from grpo_plus.selection.dead_groups.keep import Keep
from grpo_plus.selection.dead_groups.replay import Replay
from grpo_plus.selection.dead_groups.resample import Resample
from grpo_plus.selection.dead_groups.roulette import Roulette
from grpo_plus.trl.fields import other_samplers
from grpo_verifiers.errors import PluginError, Problem, VerifierError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import option_problems
from grpo_verifiers.registry import Registry
from grpo_verifiers.rules import broken_rules
from grpo_verifiers.verifying import REGISTRY

_REGISTRIES: Mapping[str, Registry[Any]] = {
    "advantage": advantages,
    "objective": objectives,
    "selection": selections,
}
DEAD_GROUPS: Mapping[str, Any] = {"keep": Keep, "resample": Resample, "roulette": Roulette, "replay": Replay}
"""The ways with dead groups, each with the class whose fields are its keywords."""
READ = (
    *("advantage", "objective", "selection", "dead_groups", "verifiers", "eval_verifiers", "verifier_column"),
    *("plugins", "tools", "environment", "critic", "reward_model", "engine", "rollout", "report", "diagnosis"),
    *("beta", "use_bias_correction_kl", "scale_rewards", "multi_objective_aggregation", "reward_weights"),
)
"""The fields that a recipe is made of."""
_PARTS = ("advantage", "objective", "selection", "verifiers", "tools", "environment", "reward_model")
"""Fields with a part of ours: with one of them a run keeps a record, and draws completions leaner."""


def read_recipe(config: Any) -> tuple[Recipe, list[Problem]]:
    """The parts that a config names, each built once, and everything that is wrong with our fields.

    With problems the recipe may lack parts.
    """
    problems: list[Problem] = []

    def collected(part: tuple[Any, Sequence[Problem]]) -> Any:
        problems.extend(part[1])
        return part[0]

    chosen = collected(_part("advantage", config, Chosen, estimator_problems))
    wrong_advantage = bool(problems)
    parts = estimators_of(chosen)
    objective = collected(_objective(config, unit_of(parts)))
    selected = collected(_part("selection", config, Selected, selection_problems))
    dead_groups = collected(_dead_groups(config))
    in_reward = objective is not None and objective.kl_in_reward
    if chosen is None and (in_reward or dead_groups.name != "keep"):  # TRL's own sees no other rows
        name, keywords = equivalent_advantage(config)
        chosen = Chosen(get_advantage(name), keywords)
        parts = estimators_of(chosen)
    entries = collected(read_entries(config.verifiers or [], "verifiers"))
    eval_entries = collected(read_entries(config.eval_verifiers or [], "eval_verifiers"))
    verifiers = collected(build_verifiers(entries, config.plugins))
    eval_verifiers = collected(build_verifiers(eval_entries, config.plugins))
    problems += verifier_problems(config, entries, eval_entries)
    engine = collected(_options("engine", EngineOptions, config)) or EngineOptions()
    rollout = collected(_options("rollout", RolloutOptions, config)) or RolloutOptions()
    report = collected(_options("report", ReportOptions, config)) or ReportOptions()
    diagnosis = collected(_options("diagnosis", DiagnosisOptions, config)) or DiagnosisOptions()
    critic = collected(_options("critic", CriticOptions, config))
    reward_model = collected(_options("reward_model", RewardModelOptions, config))
    if reward_model is not None and reward_model.weight is None:
        reward_model = replace(reward_model, weight=weight_among(config.reward_weights))
    monitor = collected(choose_monitor(diagnosis, verifiers, config.plugins))
    tools, environments = collected(choose_tools(config))
    origins = {part.label: REGISTRY.way(part.entry.name) for part in (*verifiers, *eval_verifiers)}
    written = {field: named(field, getattr(config, field)) for field in _REGISTRIES}
    names = {field: name for field, (name, _) in written.items() if name is not None}
    built = {"advantage": chosen, "objective": objective, "selection": selected}
    origins |= {field: _REGISTRIES[field].way(name) for field, name in names.items() if built[field] is not None}
    choice = Choice(config, Recipe())  # options of a field with one wrong key are the defaults: these are as written
    how, record = choice["rollout.how"], choice["report.record"]
    set_here = any(getattr(config, field) not in (None, []) for field in _PARTS)
    own = set_here or choice["diagnosis.judge"] is not None or dead_groups.name != "keep"
    lean = (own or choice["rollout.rows"] is not None) and not other_samplers(vars(config))
    recipe = Recipe(
        advantage=chosen,
        estimator_parts=parts,
        objective=objective,
        verifiers=verifiers,
        eval_verifiers=eval_verifiers,
        verifier_column=config.verifier_column,
        reward_weights=None if config.reward_weights is None else tuple(config.reward_weights),
        reward_model=reward_model,
        tools=tools,
        environments=environments,
        engine=engine,
        selection=selected,
        dead_groups=dead_groups,
        critic=critic,
        monitor=monitor,
        stop_on=tuple(diagnosis.stop_on),
        rollout=replace(rollout, how=how or ("auto" if lean else "stock")),
        rollout_is_set=how is not None,
        report=replace(report, record=own if record is None else bool(record)),
        names=names,
        keywords={field: written[field][1] for field in names},
        origins=origins,
    )
    choice = Choice(config, recipe)
    problems += [] if wrong_advantage else advantage_problems(config, recipe, entries)
    problems += start_problems(reward_model)
    problems += monitor_problems(config, recipe)
    return recipe, [*problems, *broken_rules(parts_of(choice), choice)]


def _part(
    field: str, config: Any, made: Callable[..., Any], problems_of: Callable[..., list[str]]
) -> tuple[Any, list[Problem]]:
    """The part of a registry with its keywords, None without one; problems of both."""
    name, keywords = named(field, getattr(config, field))
    if name is None:
        return None, []
    try:
        part = _REGISTRIES[field].get(name)
        return made(part, keywords), [*problems_of(part, keywords)]
    except VerifierError as error:
        return None, [error if isinstance(error, PluginError) else str(error)]


def _objective(config: Any, advantage_per: str) -> tuple[Objective | None, list[Problem]]:
    """The objective that a config names, and every problem of its composition; None without one."""
    name, keywords = named("objective", config.objective)
    if name is None:
        return None, []
    return compose_objective(
        name,
        keywords,
        beta=config.beta,
        advantage_per=advantage_per,
        use_bias_correction_kl=config.use_bias_correction_kl,
    )


def _options(field: str, schema: Any, config: Any) -> tuple[Any, list[str]]:
    """The options of a field; None where it is unset or one is wrong. What is wrong with each by itself."""
    given = getattr(config, field)
    if field in HEADS:
        given = {
            key: int(value) if isinstance(value, float) and value % 1 == 0 else value  # YAML writes 1e3 as a float
            for key, value in read_form(field, given).items()
        }
    problems = option_problems(field, schema, given or {}, where="key", bare=True)
    return (None if given is None or problems else schema(**given)), problems


def _dead_groups(config: Any) -> tuple[DeadGroups, list[str]]:
    """The way of a config with dead groups, unset keywords at their defaults, and what is wrong with it."""
    name, given = named("dead_groups", config.dead_groups)
    if name is None or name not in DEAD_GROUPS:
        return DeadGroups(), [f"dead_groups: {unknown('name', str(name), list(DEAD_GROUPS))}"]
    if problems := option_problems(f"dead_groups {name!r}", DEAD_GROUPS[name], given):
        return DeadGroups(name), problems
    keywords = asdict(DEAD_GROUPS[name](**given))
    if name == "roulette" and keywords["after"] is None:
        keywords["after"] = max(2, config.num_generations // 4)
    return DeadGroups(name, keywords), []

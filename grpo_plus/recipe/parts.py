"""From the names in a config to its `Recipe`, and every problem of the choice before any model loads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_plus import _trl
from grpo_plus.advantages import advantages, get_advantage
from grpo_plus.critic.options import CriticOptions
from grpo_plus.objectives import Objective, objectives
from grpo_plus.objectives.compose import compose_objective
from grpo_plus.recipe.advantage import (
    advantage_problems,
    choose_advantage,
    equivalent_advantage,
)
from grpo_plus.recipe.advantage import parts_of as estimators_of
from grpo_plus.recipe.choice import Choice
from grpo_plus.recipe.dead_groups import choose_dead_groups
from grpo_plus.recipe.entries import build_verifiers, read_entries, verifier_problems
from grpo_plus.recipe.forms import name_of, named, read_form
from grpo_plus.recipe.monitor import choose_monitor, monitor_problems
from grpo_plus.recipe.recipe import Chosen, Recipe, unit_of
from grpo_plus.recipe.reward_model import choose_reward_model, reward_model_problems
from grpo_plus.recipe.selection import choose_selection
from grpo_plus.recipe.settings import DiagnosisOptions, EngineOptions, ReportOptions, RolloutOptions
from grpo_plus.recipe.table import parts_of
from grpo_plus.recipe.tools import choose_tools
from grpo_plus.selection import selections
from grpo_verifiers.errors import Problem
from grpo_verifiers.options import option_problems
from grpo_verifiers.registry import Registry
from grpo_verifiers.rules import broken_rules
from grpo_verifiers.verifying import REGISTRY

_REGISTRIES: Mapping[str, Registry[Any]] = {
    "advantage": advantages,
    "objective": objectives,
    "selection": selections,
}
READ = (
    *("advantage", "objective", "selection", "dead_groups", "verifiers", "eval_verifiers", "verifier_column"),
    *("plugins", "tools", "environment", "critic", "reward_model", "engine", "rollout", "report", "diagnosis"),
    *("beta", "use_bias_correction_kl", "scale_rewards", "multi_objective_aggregation", "reward_weights"),
)
"""The fields that a recipe is made of."""


def read_recipe(config: Any) -> tuple[Recipe, list[Problem]]:
    """The parts that a config names, each built once, and everything that is wrong with our fields.

    With problems the recipe may lack parts.
    """
    chosen, wrong_advantage = choose_advantage(config)
    parts = estimators_of(chosen)
    selected, wrong_selection = choose_selection(config)
    objective, wrong_objective = choose_objective(config, unit_of(parts))
    in_reward = objective is not None and objective.kl_in_reward
    dead_groups, wrong_dead_groups = choose_dead_groups(config)
    if chosen is None and (in_reward or dead_groups.name != "keep"):  # TRL's own sees no other rows
        name, keywords = equivalent_advantage(config)
        chosen = Chosen(get_advantage(name), keywords)
        parts = estimators_of(chosen)
    entries, form = read_entries(config.verifiers or [], "verifiers")
    eval_entries, eval_form = read_entries(config.eval_verifiers or [], "eval_verifiers")
    verifiers, wrong_verifiers = build_verifiers(entries, config.plugins)
    eval_verifiers, wrong_eval_verifiers = build_verifiers(eval_entries, config.plugins)
    engine, wrong_engine = _options("engine", EngineOptions, config)
    rollout, wrong_rollout = _options("rollout", RolloutOptions, config)
    report, wrong_report = _options("report", ReportOptions, config)
    diagnosis, wrong_diagnosis = _options("diagnosis", DiagnosisOptions, config)
    critic, wrong_critic = choose_critic(config)
    reward_model, wrong_reward_model = choose_reward_model(config)
    monitor, wrong_monitor = choose_monitor(diagnosis, verifiers, config.plugins)
    tools, environments, wrong_tools = choose_tools(config)
    origins = {part.label: REGISTRY.way(part.entry.name) for part in (*verifiers, *eval_verifiers)}
    written = {field: named(field, getattr(config, field)) for field in _REGISTRIES}
    names = {field: name for field, (name, _) in written.items() if name is not None}
    built = {"advantage": chosen, "objective": objective, "selection": selected}
    origins |= {field: _REGISTRIES[field].way(name) for field, name in names.items() if built[field] is not None}
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
        rollout=replace(rollout, how=rollout_of(config)),
        rollout_is_set=rollout.how is not None,
        report=replace(report, record=records(config)),
        report_is_open=report.record is None,
        names=names,
        keywords={field: written[field][1] for field in names},
        origins=origins,
    )
    choice = Choice(config, recipe)
    return recipe, [
        *wrong_advantage,
        *([] if wrong_advantage else advantage_problems(config, recipe, entries)),
        *wrong_objective,
        *wrong_selection,
        *form,
        *eval_form,
        *wrong_verifiers,
        *wrong_eval_verifiers,
        *verifier_problems(config, entries, eval_entries),
        *wrong_engine,
        *wrong_rollout,
        *wrong_report,
        *wrong_diagnosis,
        *wrong_dead_groups,
        *wrong_critic,
        *wrong_reward_model,
        *reward_model_problems(recipe),
        *wrong_monitor,
        *monitor_problems(config, recipe),
        *wrong_tools,
        *broken_rules(parts_of(choice), choice),
        *_weight_problems(config, recipe),
    ]


def _options(field: str, schema: Any, config: Any) -> tuple[Any, list[str]]:
    """The options of a field, at their defaults where one is wrong; what is wrong with each by itself."""
    options = {
        key: int(value) if isinstance(value, float) and value % 1 == 0 else value  # YAML writes 1e3 as a float
        for key, value in read_form(field, getattr(config, field)).items()
    }
    if problems := option_problems(field, schema, options, where="key", bare=True):
        return schema(), problems
    return schema(**options), []


def _weight_problems(config: Any, recipe: Recipe) -> list[str]:
    """Weights of 0 for every reward. Those in the entries are for the trainer, which knows the reward functions too."""
    weights = config.reward_weights
    if not weights or any(weights) or recipe.step_sources is not None:
        return []
    return [f"reward_weights is {weights}: nothing is left to learn from. Give at least one reward a weight."]


def sets_parts(config: Any) -> bool:
    """Whether a part of ours is set: the run then keeps a record, and draws completions leaner."""
    fields = ("advantage", "objective", "selection", "verifiers", "tools", "environment", "reward_model")
    ours = any(getattr(config, field, None) not in (None, []) for field in fields)
    judged = read_form("diagnosis", getattr(config, "diagnosis", None)).get("judge") is not None
    return ours or judged or name_of(config, "dead_groups") not in (None, "keep")


def rollout_of(config: Any) -> str:
    """How completions are drawn on the plain path, ``stock`` or ``auto``."""
    options = read_form("rollout", config.rollout)
    if options.get("how") is not None:
        return str(options["how"])
    lean = sets_parts(config) or options.get("rows") is not None
    return "auto" if lean and not _trl.other_samplers(vars(config)) else "stock"


def records(config: Any) -> bool:
    """Whether there is a record."""
    options = read_form("report", config.report).get("record")
    return sets_parts(config) if options is None else bool(options)


def choose_critic(config: Any) -> tuple[CriticOptions | None, list[str]]:
    """The options of a config's critic, None without one; what is wrong with its keys."""
    given = config.critic
    if given is None:
        return None, []
    if problems := option_problems("critic", CriticOptions, given, where="key"):
        return None, problems
    return CriticOptions(**given), []


def choose_objective(config: Any, advantage_per: str) -> tuple[Objective | None, list[Problem]]:
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

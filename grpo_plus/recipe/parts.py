"""From the names in a config to its `Recipe`, and every problem of the choice before any model loads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_plus import _trl
from grpo_plus.advantages import advantages, get_advantage
from grpo_plus.objectives import objectives
from grpo_plus.recipe.advantage import (
    advantage_problems,
    choose_advantage,
    equivalent_advantage,
    parts_of,
    replaced_by_advantage,
)
from grpo_plus.recipe.critic import choose_critic, critic_problems
from grpo_plus.recipe.dead_groups import choose_dead_groups, dead_groups_problems
from grpo_plus.recipe.defaults import records, rollout_of
from grpo_plus.recipe.entries import build_verifiers, read_entries, verifier_problems
from grpo_plus.recipe.forms import name_of, read_form
from grpo_plus.recipe.monitor import choose_monitor, monitor_problems
from grpo_plus.recipe.objective import choose_objective, objective_problems, replaced_by_objective
from grpo_plus.recipe.recipe import Chosen, Recipe, unit_of
from grpo_plus.recipe.replay import replay_problems
from grpo_plus.recipe.reward_model import choose_reward_model, reward_model_problems
from grpo_plus.recipe.selection import choose_selection, selection_problems
from grpo_plus.recipe.settings import DiagnosisOptions, EngineOptions, ReportOptions, RolloutOptions
from grpo_plus.recipe.shares import share_problems, shares_of
from grpo_plus.recipe.tools import choose_tools, tool_problems, turn_problems
from grpo_plus.selection import selections
from grpo_verifiers.errors import Problem
from grpo_verifiers.options import option_problems
from grpo_verifiers.registry import Registry
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
    parts = parts_of(chosen)
    selected, wrong_selection = choose_selection(config)
    objective, wrong_objective = choose_objective(config, unit_of(parts))
    in_reward = objective is not None and objective.kl_in_reward
    dead_groups, wrong_dead_groups = choose_dead_groups(config)
    if config.advantage is None and (in_reward or dead_groups.name != "keep"):  # TRL's own sees no other rows
        name, keywords = equivalent_advantage(config)
        chosen = Chosen(get_advantage(name), keywords)
        parts = parts_of(chosen)
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
    names = {field: chosen_name for field in _REGISTRIES if (chosen_name := name_of(config, field)) is not None}
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
        names=names,
        origins=origins,
    )
    known = config.advantage is None or not wrong_advantage  # otherwise nobody knows what would run
    return recipe, [
        *wrong_advantage,
        *(advantage_problems(config, recipe, entries) if known else ()),
        *replaced_by_advantage(config),
        *wrong_objective,
        *objective_problems(config, recipe),
        *replaced_by_objective(config),
        *wrong_selection,
        *selection_problems(config, selected),
        *refresh_problems(config),
        *(problem for giver in shares_of(config, selected) for problem in share_problems(config, giver)),
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
        *dead_groups_problems(config, recipe),
        *replay_problems(config, recipe),
        *wrong_critic,
        *(critic_problems(config, recipe) if known else ()),
        *wrong_reward_model,
        *reward_model_problems(config, recipe),
        *wrong_monitor,
        *monitor_problems(config, recipe),
        *wrong_tools,
        *tool_problems(config),
        *(() if wrong_tools else turn_problems(recipe)),
        *_rollout_problems(config, rollout),
        *_weight_problems(config, recipe),
    ]


def refresh_problems(config: Any) -> list[str]:
    """What is wrong with the fields that refresh the reference policy."""
    if not config.sync_ref_model:
        return []
    problems = []
    if config.beta == 0:
        problems.append(
            "sync_ref_model is true, but beta is 0, so there is no reference policy to refresh: set beta, or remove "
            "sync_ref_model."
        )
    if config.ref_model_sync_steps < 1:
        problems.append(f"ref_model_sync_steps is {config.ref_model_sync_steps!r}, expected at least 1.")
    if not 0 < config.ref_model_mixup_alpha <= 1:
        problems.append(
            f"ref_model_mixup_alpha is {config.ref_model_mixup_alpha!r}, expected more than 0 and at most 1 "
            "(1.0 replaces the reference by the policy)."
        )
    return problems


def _options(field: str, schema: Any, config: Any) -> tuple[Any, list[str]]:
    """The options of a field, at their defaults where one is wrong; what is wrong with each by itself."""
    given = read_form(field, getattr(config, field))
    if problems := option_problems(field, schema, given, where="key", bare=True):
        return schema(), problems
    return schema(**given), []


def _rollout_problems(config: Any, rollout: RolloutOptions) -> list[str]:
    elsewhere = _trl.other_samplers(vars(config))
    if rollout.how == "auto" and elsewhere:
        return [f"rollout is 'auto', but {elsewhere[0]} draws completions elsewhere: leave rollout unset."]
    return []


def _weight_problems(config: Any, recipe: Recipe) -> list[str]:
    """Weights of 0 for every reward. Those in the entries are for the trainer, which knows the reward functions too."""
    weights = config.reward_weights
    if not weights or any(weights) or recipe.step_sources is not None:
        return []
    return [f"reward_weights is {weights}: nothing is left to learn from. Give at least one reward a weight."]

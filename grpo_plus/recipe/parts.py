"""From the names in a config to its `Recipe`, and every problem of the choice before any model loads."""

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
from grpo_plus.recipe.dead_groups import dead_groups_keywords, dead_groups_problems
from grpo_plus.recipe.entries import build_verifiers, read_entries, verifier_problems
from grpo_plus.recipe.monitor import choose_monitor, monitor_problems
from grpo_plus.recipe.objective import choose_objective, objective_problems, replaced_by_objective
from grpo_plus.recipe.options import rollout_of, sets_parts
from grpo_plus.recipe.recipe import Chosen, Recipe, unit_of
from grpo_plus.recipe.replay import replay_problems
from grpo_plus.recipe.reward_model import choose_reward_model, reward_model_problems
from grpo_plus.recipe.selection import choose_selection, selection_problems
from grpo_plus.recipe.shares import share_problems, shares_of
from grpo_plus.recipe.tools import choose_tools, tool_problems, turn_problems
from grpo_plus.selection import selections
from grpo_verifiers.errors import Problem
from grpo_verifiers.verifying import REGISTRY

READ = (
    *("advantage", "advantage_kwargs", "objective", "objective_kwargs", "verifiers", "eval_verifiers"),
    *("verifier_column", "plugins", "engine", "engine_tokens_per_pass", "record", "tools", "environment"),
    *("selection", "selection_kwargs", "dead_groups", "dead_groups_kwargs", "critic", "reward_model"),
    *("rollout", "rollout_rows", "vllm_sync", "hacking_monitor", "stop_on"),
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
    if config.advantage is None and (in_reward or config.dead_groups != "keep"):  # TRL's own sees no other rows
        name, keywords = equivalent_advantage(config)
        chosen = Chosen(get_advantage(name), keywords)
        parts = parts_of(chosen)
    entries, form = read_entries(config.verifiers or [], "verifiers")
    eval_entries, eval_form = read_entries(config.eval_verifiers or [], "eval_verifiers")
    verifiers, wrong_verifiers = build_verifiers(entries, config.plugins)
    eval_verifiers, wrong_eval_verifiers = build_verifiers(eval_entries, config.plugins)
    dead_groups_kwargs, wrong_dead_groups = dead_groups_keywords(config)
    critic, wrong_critic = choose_critic(config)
    reward_model, wrong_reward_model = choose_reward_model(config)
    monitor, wrong_monitor = choose_monitor(config, verifiers)
    tools, environments, wrong_tools = choose_tools(config)
    origins = {part.label: REGISTRY.way(part.entry.name) for part in (*verifiers, *eval_verifiers)}
    if config.advantage is not None and chosen is not None:
        origins["advantage"] = advantages.way(config.advantage)
    if objective is not None:
        origins["objective"] = objectives.way(config.objective)
    if selected is not None:
        origins["selection"] = selections.way(config.selection)
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
        engine=config.engine,
        engine_tokens_per_pass=config.engine_tokens_per_pass,
        selection=selected,
        dead_groups=config.dead_groups,
        dead_groups_kwargs=dead_groups_kwargs,
        critic=critic,
        hacking_monitor=monitor,
        stop_on=tuple(getattr(config, "stop_on", None) or ()),
        rollout=rollout_of(config),
        rollout_rows=config.rollout_rows,
        vllm_sync=config.vllm_sync,
        records=sets_parts(config) if config.record is None else config.record,
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
        *_engine_problems(config),
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
        *_rollout_problems(config),
        *_record_problems(config),
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


def _engine_problems(config: Any) -> list[str]:
    tokens = config.engine_tokens_per_pass
    if tokens is not None and config.engine == "stock":
        return [f"engine_tokens_per_pass ({tokens}) needs the engine, but engine is 'stock': remove one."]
    return []


def _rollout_problems(config: Any) -> list[str]:
    elsewhere = _trl.other_samplers(vars(config))
    if config.rollout == "auto" and elsewhere:
        return [f"rollout is 'auto', but {elsewhere[0]} draws completions elsewhere: leave rollout unset."]
    return []


def _record_problems(config: Any) -> list[str]:
    steps = config.report_steps
    if steps and config.record is False:
        return [f"report_steps ({steps}) needs the record, but record is false: remove one of the two."]
    return []


def _weight_problems(config: Any, recipe: Recipe) -> list[str]:
    """Weights of 0 for every reward. Those in the entries are for the trainer, which knows the reward functions too."""
    weights = config.reward_weights
    if not weights or any(weights) or recipe.step_sources is not None:
        return []
    return [f"reward_weights is {weights}: nothing is left to learn from. Give at least one reward a weight."]

"""From the normal form of a config to its frozen `Recipe`, and every problem of the choice before any model loads."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import starmap
from typing import Any

from grpo_plus.advantages import advantages, get_advantage
from grpo_plus.advantages.checking import keyword_problems as estimator_problems
from grpo_plus.advantages.checking import parts_of as estimators_of
from grpo_plus.objectives import Objective, objectives
from grpo_plus.objectives.compose import compose_objective
from grpo_plus.recipe.choice import ConfigFacts
from grpo_plus.recipe.entries import build_verifiers, choose_tools, read_entries, verifier_problems
from grpo_plus.recipe.monitor import choose_monitor, monitor_problems
from grpo_plus.recipe.recipe import Chosen, DeadGroups, Recipe, Selected
from grpo_plus.recipe.rewards import advantage_problems, equivalent_advantage, start_problems
from grpo_plus.recipe.settings import DEAD_GROUPS, DEFAULT_WEIGHT, OPTIONS
from grpo_plus.recipe.table import parts_of
from grpo_plus.recipe.values import HEADS
from grpo_plus.selection import selections
from grpo_plus.selection.checking import keyword_problems as selection_problems
from grpo_plus.trl.fields import other_samplers
from grpo_verifiers.errors import PluginError, Problem, VerifierError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import option_problems
from grpo_verifiers.registry import Registry
from grpo_verifiers.rules import broken_rules
from grpo_verifiers.verifying import REGISTRY

_REGISTRIES: Mapping[str, Registry[Any]] = {"advantage": advantages, "objective": objectives, "selection": selections}
READ = (
    *("advantage", "objective", "selection", "dead_groups", "verifiers", "eval_verifiers", "verifier_column"),
    *("plugins", "tools", "environment", "critic", "reward_model", "engine", "rollout", "report", "diagnosis"),
    *("beta", "use_bias_correction_kl", "scale_rewards", "multi_objective_aggregation", "reward_weights"),
)
"""The fields that a recipe depends on."""
_PARTS = ("advantage", "objective", "selection", "verifiers", "tools", "environment", "reward_model")
"""Fields with a part of grpo_plus: with one of them a run keeps a record and samples leaner."""


def fingerprint(config: Any) -> str:
    """A text that changes with any value that the recipe depends on."""
    return repr([Registry.replacements, *(getattr(config, name) for name in READ)])


def read_recipe(config: Any, keys: Mapping[str, Mapping[str, Any]]) -> tuple[Recipe, list[Problem]]:
    """Resolve a config in one pass; returns its frozen recipe and the problems of our fields.

    ``keys`` are those of each part, as `normalise` returns them. With problems the recipe may lack parts.
    """
    options, wrong_options = _options(config, keys)
    dead_groups, wrong_groups = _dead_groups(config, keys["dead_groups"])
    entries, wrong_entries = read_entries(config.verifiers)
    verifiers, wrong_verifiers = build_verifiers(entries, config.plugins)
    eval_entries, wrong_eval_entries = read_entries(config.eval_verifiers, "eval_verifiers")
    eval_verifiers, wrong_eval_verifiers = build_verifiers(eval_entries, config.plugins)
    wrong_labels = verifier_problems(config, entries, eval_entries)
    origins = {part.label: REGISTRY.way(part.entry.name) for part in (*verifiers, *eval_verifiers)}
    (tools, environments), wrong_tools = choose_tools(config)
    monitor, wrong_monitor = choose_monitor(options["diagnosis"], verifiers, config.plugins)

    names = {field: keys[field]["name"] for field in _REGISTRIES if keys[field]}
    keywords = {field: {key: value for key, value in keys[field].items() if key != "name"} for field in names}
    chosen, wrong_advantage = _part("advantage", names, keywords, Chosen, estimator_problems)
    estimators: tuple[Chosen, ...] = ()
    if chosen is not None:
        with suppress(VerifierError, TypeError, ValueError, AttributeError):  # reported with the keywords
            estimators = tuple(starmap(Chosen, estimators_of(*chosen)))
    units = {estimator.per for estimator, _ in estimators}
    advantage_per = "step" if "step" in units else "token" if "token" in units else "completion"
    objective: Objective | None = None
    wrong_objective: list[Problem] = []
    if "objective" in names:
        objective, wrong_objective = compose_objective(
            names["objective"],
            keywords["objective"],
            beta=config.beta,
            advantage_per=advantage_per,
            use_bias_correction_kl=config.use_bias_correction_kl,
        )
    selected, wrong_selection = _part("selection", names, keywords, Selected, selection_problems)
    in_reward = objective is not None and objective.kl_in_reward
    if chosen is None and (in_reward or dead_groups.name != "keep"):  # TRL's own estimator sees no other rows
        name, equivalent = equivalent_advantage(config)
        chosen = Chosen(get_advantage(name), equivalent)
        estimators = (chosen,)

    built = {"advantage": chosen, "objective": objective, "selection": selected}
    origins |= {field: _REGISTRIES[field].way(name) for field, name in names.items() if built[field] is not None}
    how, record = keys["rollout"].get("how"), keys["report"].get("record")  # as written, even if another key is wrong
    is_set = any(getattr(config, field) not in (None, []) for field in _PARTS)
    own = is_set or keys["diagnosis"].get("judge") is not None or dead_groups.name != "keep"
    lean = (own or keys["rollout"].get("rows") is not None) and not other_samplers(vars(config))
    recipe = Recipe(
        advantage=chosen,
        estimator_parts=estimators,
        objective=objective,
        verifiers=verifiers,
        eval_verifiers=eval_verifiers,
        verifier_column=config.verifier_column,
        reward_weights=None if config.reward_weights is None else tuple(config.reward_weights),
        reward_model=options["reward_model"],
        tools=tools,
        environments=environments,
        engine=options["engine"],
        selection=selected,
        dead_groups=dead_groups,
        critic=options["critic"],
        monitor=monitor,
        stop_on=tuple(options["diagnosis"].stop_on),
        rollout=replace(options["rollout"], how=how or ("auto" if lean else "stock")),
        rollout_is_set=how is not None,
        report=replace(options["report"], record=own if record is None else bool(record)),
        report_is_set=record is not None,
        names=names,
        keywords=keywords,
        origins=origins,
    )
    choice = ConfigFacts(config, recipe)
    wrong_start = start_problems(recipe.reward_model)
    problems = [*wrong_advantage, *wrong_objective, *wrong_selection, *wrong_groups, *wrong_entries]
    problems += [*wrong_eval_entries, *wrong_verifiers, *wrong_eval_verifiers, *wrong_labels]
    problems += [*wrong_options, *wrong_monitor, *wrong_tools]
    problems += [] if wrong_advantage else advantage_problems(config, recipe, entries)
    problems += [*wrong_start, *monitor_problems(config, recipe)]
    return recipe, [*problems, *broken_rules(parts_of(choice), choice)]


def _part(
    field: str,
    names: Mapping[str, str],
    keywords: Mapping[str, Mapping[str, Any]],
    kind: type,
    problems_of: Callable[..., list[str]],
) -> tuple[Any, list[Problem]]:
    if field not in names:
        return None, []
    try:
        part = _REGISTRIES[field].get(names[field])
        return kind(part, keywords[field]), [*problems_of(part, keywords[field])]
    except VerifierError as error:
        return None, [error if isinstance(error, PluginError) else str(error)]


def _options(config: Any, keys: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The options of each field, and their problems; with a problem the defaults, None for a part of its own."""
    options: dict[str, Any] = {}
    problems: list[str] = []
    for field, schema in OPTIONS.items():
        values = keys[field] if field in HEADS else getattr(config, field)
        wrong = option_problems(field, schema, values or {}, where="key", bare=True)
        problems += wrong
        options[field] = schema(**values) if values is not None and not wrong else schema() if field in HEADS else None
    model = options["reward_model"]
    if model is not None and model.weight is None:
        last = [DEFAULT_WEIGHT] if config.reward_weights is None else config.reward_weights[-1:]
        options["reward_model"] = replace(model, weight=next(iter(last), None) or None)  # a 0 is refused
    return options, problems


def _dead_groups(config: Any, keys: Mapping[str, Any]) -> tuple[DeadGroups, list[str]]:
    name, keywords = str(keys.get("name", "keep")), {key: value for key, value in keys.items() if key != "name"}
    if name not in DEAD_GROUPS:
        return DeadGroups(), [f"dead_groups: {unknown('name', name, DEAD_GROUPS)}"]
    if problems := option_problems(f"dead_groups {name!r}", DEAD_GROUPS[name], keywords):
        return DeadGroups(name), problems
    keywords = asdict(DEAD_GROUPS[name](**keywords))
    if name == "roulette" and keywords["after"] is None:
        keywords["after"] = max(2, config.num_generations // 4)
    return DeadGroups(name, keywords), []

"""What becomes of dead groups: the keywords of a config with their defaults, and every problem of the choice."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from grpo_plus.recipe.recipe import Recipe, recipe_of
from grpo_plus.selection.dead_groups.replay import Replay
from grpo_plus.selection.dead_groups.resample import Resample
from grpo_plus.selection.dead_groups.roulette import Roulette
from grpo_verifiers.options import option_problems

WAYS: Mapping[str, type] = {"resample": Resample, "roulette": Roulette, "replay": Replay}
"""The classes whose fields are the keywords of each way."""


def dead_groups_keywords(config: Any) -> tuple[dict[str, Any], list[str]]:
    """The keywords of a config's ``dead_groups``, unset ones at their defaults, and what is wrong with them."""
    given, way = dict(config.dead_groups_kwargs or {}), WAYS.get(config.dead_groups)
    if config.dead_groups == "keep" and given:
        text = f"dead_groups_kwargs is {given!r}, but dead_groups is 'keep', so nothing would read it"
        return {}, [f"{text}: set dead_groups, or remove dead_groups_kwargs."]
    if way is None:
        return given, []
    if problems := option_problems(f"dead_groups {config.dead_groups!r}", way, given, where="dead_groups_kwargs"):
        return {}, problems
    keywords = asdict(way(**given))
    if config.dead_groups == "roulette" and keywords["after"] is None:
        keywords["after"] = max(2, config.num_generations // 4)
    return keywords, []


def dead_groups_problems(config: Any, recipe: Recipe) -> list[str]:
    """Fields that a way with dead groups cannot go with."""
    way = config.dead_groups
    if way == "keep":
        return []
    problems = []
    if recipe.objective is not None and recipe.objective.kl_in_reward:
        problems.append(
            f"dead_groups is {way!r}, but the KL term is in the rewards (kl placement reward): no two are equal, so "
            "no group would ever be dead. Place the KL term in the loss, or remove dead_groups."
        )
    if config.num_generations == 1 and config.advantage is not None:  # otherwise there is a message of its own
        problems.append(
            f"dead_groups is {way!r}, but num_generations is 1: a group of one has no contrast that could be missed. "
            "Remove dead_groups, or set num_generations to 2 or more."
        )
    if way == "roulette" and config.num_generations > 1:
        problems += _roulette_problems(config, recipe)
    return problems


def _roulette_problems(config: Any, recipe: Recipe) -> list[str]:
    size = config.num_generations
    if size == 2:
        text = (
            "dead_groups is 'roulette', but num_generations is 2: contrast takes two completions, so there is no rest"
        )
        return [f"{text} to save. Set num_generations to 3 or more, or dead_groups to 'resample'."]
    after = recipe.dead_groups_kwargs.get("after")
    if after is None:  # it is wrong by itself
        return []
    if after >= size:
        text = f"dead_groups_kwargs after is {after}, but num_generations is {size}, so there is no rest to save"
        return [f"{text}: set after to at most {size - 1}."]
    return [
        f"dead_groups 'roulette' looks at a group after {after} completions, too few for the advantage estimator "
        f"{part.name!r}, whose advantages would all be 0: {why}, or dead_groups_kwargs after."
        for part, keywords in recipe.estimator_parts
        if part.check_size is not None and (why := part.check_size(keywords, after))
    ]


def dead_groups_notes(config: Any) -> list[str]:
    """One sentence where the scale of the advantages depends on which groups are there."""
    parts = recipe_of(config).estimator_parts
    named = [part.name for part, keywords in parts if part.over_the_batch(keywords)]
    if config.dead_groups == "keep" or not named:
        return []
    text = f"the advantage estimator {named[0]!r} takes its scale from the whole batch, and dead_groups"
    return [f"{text} {config.dead_groups!r} decides what is in it: the scale is that of what was drawn."]

"""What becomes of dead groups: the keywords of a config with their defaults, and every problem of the choice."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from grpo_plus.recipe.forms import named
from grpo_plus.recipe.recipe import DeadGroups, Recipe, recipe_of
from grpo_plus.selection.dead_groups.replay import Replay
from grpo_plus.selection.dead_groups.resample import Resample
from grpo_plus.selection.dead_groups.roulette import Roulette
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import option_problems


@dataclass(frozen=True)
class Keep:
    """Dead groups stay, and teach nothing; there are no keywords."""


WAYS: Mapping[str, Any] = {"keep": Keep, "resample": Resample, "roulette": Roulette, "replay": Replay}
"""The classes whose fields are the keywords of each way."""
KEYWORDS = [field.name for way in WAYS.values() for field in fields(way)]


def choose_dead_groups(config: Any) -> tuple[DeadGroups, list[str]]:
    """The way of a config with dead groups, unset keywords at their defaults, and what is wrong with it."""
    name, given = named("dead_groups", config.dead_groups)
    if name is None or name not in WAYS:
        return DeadGroups(), [f"dead_groups: {unknown('name', str(name), list(WAYS))}"]
    if problems := option_problems(f"dead_groups {name!r}", WAYS[name], given):
        return DeadGroups(name), problems
    keywords = asdict(WAYS[name](**given))
    if name == "roulette" and keywords["after"] is None:
        keywords["after"] = max(2, config.num_generations // 4)
    return DeadGroups(name, keywords), []


def dead_groups_problems(config: Any, recipe: Recipe) -> list[str]:
    """Fields that a way with dead groups cannot go with."""
    way = recipe.dead_groups.name
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
    after = recipe.dead_groups.keywords.get("after")
    if after is None:  # it is wrong by itself
        return []
    if after >= size:
        text = f"dead_groups after is {after}, but num_generations is {size}, so there is no rest to save"
        return [f"{text}: set after to at most {size - 1}."]
    return [
        f"dead_groups 'roulette' looks at a group after {after} completions, too few for the advantage estimator "
        f"{part.name!r}, whose advantages would all be 0: {why}, or dead_groups after."
        for part, keywords in recipe.estimator_parts
        if part.check_size is not None and (why := part.check_size(keywords, after))
    ]


def dead_groups_notes(config: Any) -> list[str]:
    """One sentence where the scale of the advantages depends on which groups are there."""
    recipe = recipe_of(config)
    parts, way = recipe.estimator_parts, recipe.dead_groups.name
    over = [part.name for part, keywords in parts if part.over_the_batch(keywords)]
    if way == "keep" or not over:
        return []
    text = f"the advantage estimator {over[0]!r} takes its scale from the whole batch, and dead_groups"
    return [f"{text} {way!r} decides what is in it: the scale is that of what was drawn."]

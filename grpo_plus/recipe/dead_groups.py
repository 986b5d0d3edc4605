"""What becomes of dead groups: the keywords of a config with their defaults, and every problem of the choice."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from grpo_plus.recipe.forms import named
from grpo_plus.recipe.recipe import DeadGroups
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

"""What becomes of dead groups: the keywords of a config with their defaults, and every problem of the choice."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from grpo_plus.selection.dead_groups.resample import Resample
from grpo_plus.selection.dead_groups.roulette import Roulette
from grpo_verifiers.options import option_problems

WAYS: Mapping[str, type] = {"resample": Resample, "roulette": Roulette}
"""The classes whose fields are the keywords of each way."""


def dead_groups_keywords(config: Any) -> tuple[dict[str, Any], list[str]]:
    """The keywords of a config's ``dead_groups``, unset ones at their defaults, and what is wrong with them."""
    given, way = dict(config.dead_groups_kwargs or {}), WAYS.get(config.dead_groups)
    if way is None:
        return given, []
    if problems := option_problems(f"dead_groups {config.dead_groups!r}", way, given, where="dead_groups_kwargs"):
        return {}, problems
    keywords = asdict(way(**given))
    if config.dead_groups == "roulette" and keywords["after"] is None:
        keywords["after"] = max(2, config.num_generations // 2)
    return keywords, []

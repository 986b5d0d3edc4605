"""Our fields of a config in one form each: lists, mappings, names, absolute paths."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_plus.advantages import anchor_parts
from grpo_plus.recipe.forms import HEADS, read_form, write_form
from grpo_plus.recipe.options import is_off, mapping, mapping_or_none
from grpo_plus.recipe.paths import absolute, absolute_entry, absolute_judge, absolute_pieces, absolute_start
from grpo_plus.recipe.ranges import default_of
from grpo_plus.recipe.selection import absolute_file
from grpo_verifiers.errors import PluginError, Problem
from grpo_verifiers.options import numbers
from grpo_verifiers.verifying import load_plugins


def normalise(config: Any, base: Path) -> list[Problem]:
    """Put our fields into one form each, in place, and import the plug-ins; returns what has no such form.

    Relative paths start from ``base``.
    """
    problems: list[Problem] = []
    for name in HEADS:
        try:
            given = _ANCHORS.get(name, _as_it_is)(read_form(name, getattr(config, name)), base)
        except ValueError as error:
            problems.append(str(error))
            given = {}
        if isinstance(given.get("name"), str):
            given["name"] = absolute(given["name"], base)
        if "stop_on" in given:
            names = _listed("diagnosis stop_on", given["stop_on"], problems)
            given["stop_on"] = [name.strip() for item in names for name in str(item).split(",")]
        setattr(config, name, write_form(name, given) or default_of(config.__dataclass_fields__[name]))
    config.critic = _part("critic", config.critic, problems)
    config.reward_model = absolute_start(_part("reward_model", config.reward_model, problems), base)
    config.plugins = [absolute(plugin, base) for plugin in _listed("plugins", config.plugins, problems)]
    for name in ("verifiers", "eval_verifiers"):
        items = _listed(name, getattr(config, name), problems)
        setattr(config, name, [absolute_entry(_entry(item), base) for item in items])
    config.tools = [absolute_entry(_entry(item), base) for item in _listed("tools", config.tools, problems)]
    config.environment = _environment(config.environment, base, problems)
    for plugin in config.plugins:
        try:
            load_plugins([plugin])
        except PluginError as error:
            problems.append(error)
    return problems


def _as_it_is(given: dict[str, Any], _base: Path) -> dict[str, Any]:
    return given


_ANCHORS: Mapping[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "advantage": anchor_parts,
    "objective": absolute_pieces,
    "selection": absolute_file,
    "diagnosis": absolute_judge,
}
"""What makes the paths inside a part absolute."""


def _part(name: str, value: Any, problems: list[Problem]) -> dict[str, Any] | None:
    """The options of a part that is not there where nothing is given; an empty mapping asks for it."""
    try:
        return mapping_or_none(name, value)
    except ValueError as error:
        problems.append(str(error))
        return None


def _entry(item: Any) -> Any:
    """An item of ``verifiers``; the text of a mapping, which is how a command line gives one, is read."""
    if isinstance(item, str) and item.lstrip().startswith("{"):
        try:
            return mapping("verifiers", item)
        except ValueError:
            return item  # no such verifier, as the check of entries says
    return numbers(item) if isinstance(item, dict) else item


def _environment(given: Any, base: Path, problems: list[Problem]) -> Any:
    """An environment, or several by the values of a column."""
    given = _entry(given)
    if is_off(given):
        return None
    if isinstance(given, dict) and "name" not in given:
        values = [str(value) for value in given]
        problems += [
            f"environment has {value!r} twice, as a text and as another value: the column holds texts. Keep one."
            for value in dict.fromkeys(values)
            if values.count(value) > 1
        ]
        return {str(value): absolute_entry(_entry(item), base) for value, item in given.items()}
    return absolute_entry(given, base)


def _listed(name: str, value: Any, problems: list[Problem]) -> list[Any]:
    if is_off(value) or (
        isinstance(value, list) and len(value) == 1 and isinstance(value[0], str) and is_off(value[0])
    ):
        return []  # a command line gives one word as the list of it
    if isinstance(value, str) or (isinstance(value, dict) and name != "plugins"):
        return [value]
    if not isinstance(value, list | tuple):
        problems.append(f"{name} is {value!r}, expected a list.")
        return []
    if name == "plugins" and not all(isinstance(item, str) for item in value):
        problems.append(f"plugins is {value!r}, expected a list of module names and file paths.")
        return []
    return list(value)

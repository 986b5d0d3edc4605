"""Our fields of a config in one form each: lists, mappings, names, absolute paths."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from grpo_plus.recipe.forms import HEADS, read_form, write_form
from grpo_plus.recipe.options import default_of, is_off, mapping, mapping_or_none
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
            keys = read_form(name, getattr(config, name))
            keys = _ANCHORS[name](keys, base) if name in _ANCHORS else keys
        except ValueError as error:
            problems.append(str(error))
            keys = {}
        if isinstance(keys.get("name"), str):
            keys["name"] = absolute(keys["name"], base)
        if "stop_on" in keys:
            names = _listed("diagnosis stop_on", keys["stop_on"], problems)
            keys["stop_on"] = [name.strip() for item in names for name in str(item).split(",")]
        setattr(config, name, write_form(name, keys) or default_of(config.__dataclass_fields__[name]))
    config.critic = _part("critic", config.critic, problems)
    reward_model = _part("reward_model", config.reward_model, problems)
    config.reward_model = None if reward_model is None else absolute_path("start", reward_model, base)
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


def absolute(reference: str, base: Path) -> str:
    """A reference whose file path, if it has one, is absolute."""
    where, colon, attr = reference.partition(".py:")
    path = where + ".py" if colon else reference
    if not path.endswith(".py"):
        return reference
    return str((base / Path(path).expanduser()).resolve()) + (f":{attr}" if colon else "")


def absolute_parts(keywords: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """An estimator's keywords with the references to the parts of a mix made absolute."""
    parts = keywords.get("parts")
    if not isinstance(parts, Mapping):
        return dict(keywords)
    names = {part: absolute(part, base) for part in parts if isinstance(part, str)}
    renamed = {names.get(key, key): value for key, value in keywords.items() if key != "parts"}
    return {"parts": {names.get(part, part): weight for part, weight in parts.items()}, **renamed}


def absolute_pieces(keywords: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """An objective's keywords with the references to its pieces made absolute."""
    pieces: dict[str, Any] = dict(keywords)
    for kind in ("ratio", "surrogate", "reduce", "kl"):
        spec = pieces.get(kind)
        key = "estimator" if kind == "kl" else "name"
        if isinstance(spec, str):
            pieces[kind] = absolute(spec, base)
        elif isinstance(spec, Mapping) and isinstance(spec.get(key), str):
            pieces[kind] = {**spec, key: absolute(spec[key], base)}
    return pieces


def absolute_entry(item: Any, base: Path) -> Any:
    """An item of ``verifiers`` with the references to its verifier and its segmenter made absolute."""
    if isinstance(item, str):
        return item if item.lstrip().startswith("{") else absolute(item, base)  # a mapping that cannot be read
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        return item
    if isinstance(item.get("steps"), str):
        item = {**item, "steps": absolute(item["steps"], base)}
    return {**item, "name": absolute(item["name"], base)}


def absolute_path(key: str, options: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Options with the path under a key made absolute."""
    path = options.get(key)
    return {**options, key: str((base / Path(path).expanduser()).resolve())} if isinstance(path, str) else {**options}


def absolute_judge(options: dict[str, Any], base: Path) -> dict[str, Any]:
    """The options of the diagnosis with the file of its judge made absolute."""
    return {**options, "judge": absolute_entry(options["judge"], base)} if "judge" in options else options


_ANCHORS: Mapping[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "advantage": absolute_parts,
    "objective": absolute_pieces,
    "selection": partial(absolute_path, "file"),
    "diagnosis": absolute_judge,
}
"""What makes the paths inside a part absolute."""

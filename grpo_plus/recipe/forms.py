"""The normal form of our fields, from values and from flags: lists, mappings, absolute paths, parts by a word."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from grpo_plus.recipe.values import HEADS, NO_YAML, StrictLoader, default_of, is_off, mapping, mapping_or_none
from grpo_verifiers.errors import PluginError, Problem
from grpo_verifiers.files import read_text
from grpo_verifiers.options import numbers
from grpo_verifiers.verifying import load_plugins

PARTS_FILE = Path(__file__).with_name("parts.json")
"""A line for each built-in part, by kind and name, and its keywords; docs/parts/write.py writes both from the code."""
OFF: Mapping[str, Any] = {"dead_groups": "keep", "engine": "stock", "rollout": "stock", "report": False}
"""The word for false, where that is not the same as unset."""


def read_form(field: str, value: Any) -> dict[str, Any]:
    """Return the value as a mapping; empty for an unset one.

    >>> read_form("advantage", "zscore"), read_form("engine", {"tokens_per_pass": 4096}), read_form("report", True)
    ({'name': 'zscore'}, {'tokens_per_pass': 4096}, {'record': True})
    """
    head = HEADS[field]
    if is_off(value):
        return {} if value is None or field not in OFF else {head: OFF[field]}
    if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{")):
        keys = mapping(field, value)
        if head == "name" and not (isinstance(keys.get(head), str) and keys[head]):
            raise ValueError(f"{field} is {keys!r}, which lacks a name: write {field}: {{name: NAME, …}}.")
        return keys if head == "name" else {key: _plain(key, item) for key, item in keys.items()}
    if field == "report" and str(value).lower() == "true":
        return {head: True}
    if isinstance(value, str):
        return {head: value}
    word = "true, false" if field == "report" else "a word"
    raise ValueError(f"{field} is {value!r}, expected {word} or a mapping with the key {head!r}.")


def _plain(key: str, value: Any) -> Any:
    """A value of an option: integers for floats such as 1e3, as YAML reads it; ``stop_on`` as a list of names."""
    if key == "stop_on":
        items = [] if is_off(value) else [value] if isinstance(value, str) else value
        return [name.strip() for item in items for name in str(item).split(",")] if isinstance(items, list) else value
    return int(value) if isinstance(value, float) and value % 1 == 0 else value


def write_form(field: str, keys: Mapping[str, Any]) -> Any:
    """The shortest value that is read as this mapping; None for an empty one."""
    word = keys.get(HEADS[field])
    if isinstance(word, str) and len(keys) == 1 and not word.lstrip().startswith("{") and not is_off(word):
        return word if read_form(field, word) == keys else dict(keys)
    return dict(keys) or None


def normalise(config: Any, base: Path) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Put our fields into their normal form, in place, and import the plug-ins; relative paths start from ``base``.

    Returns the keys of each part by its field, and the problems of the forms.
    """
    problems: list[Problem] = []
    parts: dict[str, dict[str, Any]] = {}
    for name in HEADS:
        try:
            keys = read_form(name, getattr(config, name))
            keys = _ANCHORS[name](keys, base) if name in _ANCHORS else keys
        except ValueError as error:
            problems.append(str(error))
            keys = {}
        if isinstance(keys.get("name"), str):
            keys["name"] = absolute(keys["name"], base)
        setattr(config, name, write_form(name, keys) or default_of(config.__dataclass_fields__[name]))
        parts[name] = read_form(name, getattr(config, name))
    config.critic = _part("critic", config.critic, problems)
    reward_model = _part("reward_model", config.reward_model, problems)
    if reward_model is not None and isinstance(start := reward_model.get("start"), str):
        reward_model["start"] = str((base / Path(start).expanduser()).resolve())
    config.reward_model = reward_model
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
    return parts, problems


def _part(name: str, value: Any, problems: list[Problem]) -> dict[str, Any] | None:
    """The options of a part; None without the part, an empty mapping for the defaults."""
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
            return item  # an unknown verifier, which the check of entries reports
    return numbers(item) if isinstance(item, dict) else item


def _environment(value: Any, base: Path, problems: list[Problem]) -> Any:
    value = _entry(value)
    if is_off(value):
        return None
    if isinstance(value, dict) and "name" not in value:
        names = [str(name) for name in value]
        problems += [
            f"environment has {name!r} twice, as a text and as another value: the column holds texts. Keep one."
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        return {str(name): absolute_entry(_entry(item), base) for name, item in value.items()}
    return absolute_entry(value, base)


def unfolded(value: Any) -> Any:
    """The list in a list of one text, as a command line gives ``'[a, b]'``; any other value as it is."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str) and value[0].startswith("["):
        with suppress(*NO_YAML):
            return numbers(yaml.load(value[0], StrictLoader))  # noqa: S506 - a subclass of the safe loader
    return value


def _listed(name: str, value: Any, problems: list[Problem]) -> list[Any]:
    if is_off(value) or (
        isinstance(value, list) and len(value) == 1 and isinstance(value[0], str) and is_off(value[0])
    ):
        return []  # a command line gives one word as the list of it
    value = unfolded(value)
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
    """An estimator's keywords with the references to the parts of a mix as absolute paths."""
    parts = keywords.get("parts")
    if not isinstance(parts, Mapping):
        return dict(keywords)
    names = {part: absolute(part, base) for part in parts if isinstance(part, str)}
    renamed = {names.get(key, key): value for key, value in keywords.items() if key != "parts"}
    return {"parts": {names.get(part, part): weight for part, weight in parts.items()}, **renamed}


def absolute_pieces(keywords: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """An objective's keywords with the references to its pieces as absolute paths."""
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
    """An item of ``verifiers`` with the references to its verifier and its segmenter as absolute paths."""
    if isinstance(item, str):
        return item if item.lstrip().startswith("{") else absolute(item, base)  # a mapping that cannot be read
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        return item
    if isinstance(item.get("steps"), str):
        item = {**item, "steps": absolute(item["steps"], base)}
    return {**item, "name": absolute(item["name"], base)}


def absolute_judge(options: dict[str, Any], base: Path) -> dict[str, Any]:
    """The options of the diagnosis with an absolute path of its judge."""
    return {**options, "judge": absolute_entry(options["judge"], base)} if "judge" in options else options


_ANCHORS: Mapping[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "advantage": absolute_parts,
    "objective": absolute_pieces,
    "diagnosis": absolute_judge,
}
"""Functions that make the paths inside a part absolute."""


class KeywordAction(argparse.Action):
    """``--field.key 1`` sets one key. A value replaces that of the file, and keeps the keys set by flags."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Merge one flag into the namespace."""
        text = values if isinstance(values, str) else str(values)
        path = (option_string or "").lstrip("-").split(".")[1:]
        before = getattr(namespace, self.dest, None)
        try:
            keyed = bool(path) and _with_key(self.dest, before, path, text, option_string)
            value = keyed if path else self._all(parser, before, text)
        except (ValueError, TypeError, yaml.YAMLError) as error:
            raise argparse.ArgumentError(None, f"argument {option_string}: {error}") from error
        setattr(namespace, self.dest, value)

    def _all(self, parser: argparse.ArgumentParser, before: Any, text: str) -> Any:
        if self.dest not in HEADS:
            return mapping_or_none(self.dest, text)
        keys = read_form(self.dest, text)
        if not keys:
            return None
        if before == parser.get_default(self.dest) and HEADS[self.dest] == "name":
            return write_form(self.dest, keys)
        return write_form(self.dest, {**_mapping(self.dest, before), **keys})


def _with_key(field: str, before: Any, path: Sequence[str], text: str, flag: str | None) -> Any:
    merged = _mapping(field, before)
    inner = merged
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise TypeError(f"{flag} sets a key inside {key!r}, which is {inner!r}")
    inner[path[-1]] = numbers(yaml.load(text, StrictLoader))  # noqa: S506 - a subclass of the safe loader
    return merged


def _mapping(field: str, value: Any) -> dict[str, Any]:
    """The mapping so far; one without its name is completed by a later flag."""
    if isinstance(value, dict) or field not in HEADS:
        return mapping(field, value)
    return read_form(field, value)


@lru_cache
def part_keywords() -> Mapping[str, Mapping[str, list[str]]]:
    """The keywords of the built-in parts by kind and name; with ``*`` any other is one, too."""
    kinds = json.loads(read_text(PARTS_FILE))["keywords"]
    return {kind: {name: words.split() for name, words in of_kind.items()} for kind, of_kind in kinds.items()}


def part_flags(*kinds: str) -> list[str]:
    """The keywords of all built-in parts of these kinds."""
    return sorted({word for kind in kinds for words in part_keywords()[kind].values() for word in words} - {"*"})


def dotted_flags(field: str, keys: Sequence[str]) -> dict[str, Any]:
    """Metadata of a dataclass field: adds the flags ``--field.key value`` for ``keys`` to any parser."""
    return {"action": KeywordAction, "aliases": [f"--{field}.{key}" for key in keys]}


def add_dotted_flags(parser: argparse.ArgumentParser, arguments: Sequence[str], fields: Sequence[str]) -> None:
    """Add the ``--field.any.key`` flags among ``arguments`` to ``parser``: plug-ins have keywords of their own."""
    about = {action.dest: action.help for action in parser._actions}  # noqa: SLF001 - argparse has no public list
    for argument in dict.fromkeys(argument.partition("=")[0] for argument in arguments):
        field, dot, path = argument.removeprefix("--").partition(".")
        if argument.startswith("--") and dot and path and field in fields:
            try:
                parser.add_argument(
                    argument, dest=field, action=KeywordAction, default=argparse.SUPPRESS, help=about.get(field)
                )
            except argparse.ArgumentError:  # a keyword of a built-in part already has a flag
                continue

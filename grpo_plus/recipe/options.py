"""Config fields: keywords from YAML, JSON or ``--field.key value`` flags; fields that are set."""

import argparse
import copy
from collections.abc import Collection, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from grpo_plus import _trl
from grpo_verifiers.errors.messages import did_you_mean
from grpo_verifiers.options import fits, numbers, spell


class StrictLoader(yaml.SafeLoader):
    """YAML in which a duplicate key is an error, and the words on, off, yes and no are text where they are keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys: plain YAML silently keeps the last. It also takes the key ``on`` for true."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:bool":
                key_node.tag = "tag:yaml.org,2002:str"
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            if isinstance(key, str | int | float | bool):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the config file {path} cannot be read: {error}.") from error
    try:
        value = yaml.load(text, StrictLoader)  # noqa: S506 - a subclass of the safe loader
    except yaml.YAMLError as error:
        raise ValueError(f"the config file {path} is no valid YAML: {error}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"the config file {path} must hold a mapping of option names to values, like 'beta: 0.0'.")
    return {key: numbers(item) for key, item in value.items()}


OFF = ("", "none", "null", "false")
"""Words of a command line or of YAML that mean nothing at all, beside null and false themselves."""


def is_off(value: Any) -> bool:
    """Null, false, or a word for them: the part or the options are not there.

    >>> [is_off(value) for value in (None, False, "none", {}, "sign")]
    [True, True, True, False, False]
    """
    return value is None or value is False or (isinstance(value, str) and value.strip().lower() in OFF)


def mapping(field: str, value: Any) -> dict[str, Any]:
    """The keywords of a field, from a mapping or its text; none where it is null or false."""
    return mapping_or_none(field, value) or {}


def mapping_or_none(field: str, value: Any) -> dict[str, Any] | None:
    """As `mapping`; None where it is null or false, which of some fields ``{}`` is not: it asks for the defaults."""
    if isinstance(value, str):
        try:
            value = yaml.load(value, StrictLoader)  # noqa: S506 - a subclass of the safe loader; JSON is YAML
        except yaml.YAMLError as error:
            raise ValueError(f"{field} is no valid JSON or YAML: {value!r} ({error})") from error
    if is_off(value):
        return None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        expected = f"expected a mapping of keywords to values, like {{'eps': 1.0e-4}}{_DEFAULTS * (value is True)}."
        raise ValueError(f"{field} is {value!r}, {expected}")
    return {key: numbers(copy.deepcopy(item)) for key, item in value.items()}


_DEFAULTS = ", or {} for the defaults"


def strange_key(field: str, key: str, value: Any, keys: Collection[str]) -> str:
    """The message for an unknown key of a mapping."""
    return f"{field} has {key}: {value!r}; it takes the keys {', '.join(keys)}.{did_you_mean(key, keys)}"


def checked_mapping(field: str, given: Any, schema: type, example: str) -> tuple[dict[str, Any], list[str]]:
    """A field that holds a mapping, and its problems; the mapping is empty if it cannot be read.

    ``schema`` is a ``TypedDict`` with the keys and the values that each takes; ``example`` is for the message.
    """
    try:
        values = mapping(field, given)
    except ValueError:
        more = _DEFAULTS * (given is True)
        return {}, [f"{field} is {given!r}, expected a mapping, like {example}{more}."]
    hints = get_type_hints(schema, include_extras=True)
    return values, [
        f"{field} has {key}: {value!r}, expected {spell(hints[key])}."
        if key in hints
        else strange_key(field, key, value, hints)
        for key, value in values.items()
        if key not in hints or not fits(value, hints[key])
    ]


class KeywordAction(argparse.Action):
    """``--field '{"key": 1}'`` replaces the keywords; ``--field.key 1`` sets one of them."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Merge one flag into the namespace."""
        text = values if isinstance(values, str) else str(values)
        path = (option_string or "").lstrip("-").split(".")[1:]
        try:
            if not path:
                setattr(namespace, self.dest, mapping_or_none(self.dest, text))
                return
            whole = mapping(self.dest, getattr(namespace, self.dest, None))
            inner = whole
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
                if not isinstance(inner, dict):
                    raise TypeError(f"{option_string} sets a key inside {key!r}, which is {inner!r}")  # noqa: TRY301
            inner[path[-1]] = numbers(yaml.load(text, StrictLoader))  # noqa: S506 - a subclass of the safe loader
        except (ValueError, TypeError, yaml.YAMLError) as error:
            raise argparse.ArgumentError(None, f"argument {option_string}: {error}") from error
        setattr(namespace, self.dest, whole)


def dotted_flags(field: str, keys: Sequence[str]) -> dict[str, Any]:
    """Metadata of a dataclass field: adds the flags ``--field.key value`` for ``keys`` to any parser."""
    return {"action": KeywordAction, "aliases": [f"--{field}.{key}" for key in keys]}


def add_dotted_flags(parser: argparse.ArgumentParser, arguments: Sequence[str], fields: Sequence[str]) -> None:
    """Add the ``--field.any.key`` flags among ``arguments`` to ``parser``: plug-ins have keywords of their own."""
    for argument in dict.fromkeys(argument.partition("=")[0] for argument in arguments):
        field, dot, path = argument.removeprefix("--").partition(".")
        if argument.startswith("--") and dot and path and field in fields:
            try:
                parser.add_argument(argument, dest=field, action=KeywordAction, default=argparse.SUPPRESS)
            except argparse.ArgumentError:  # a keyword of a built-in part is known already
                continue


def changed_fields(config: Any, names: Sequence[str]) -> list[str]:
    """The fields that differ from their default, in order; unknown ones are skipped."""
    fields = config.__dataclass_fields__
    return [name for name in names if name in fields and getattr(config, name) != _default(fields[name])]


def _default(spec: Any) -> Any:
    return spec.default if spec.default is not MISSING else spec.default_factory()


def sets_parts(config: Any) -> bool:
    """Whether a part of ours is set: the run then keeps a record, and draws completions leaner."""
    chosen = (config.advantage, config.objective, config.selection)
    ours = any(part is not None for part in chosen) or bool(config.verifiers) or config.dead_groups != "keep"
    tools = bool(getattr(config, "tools", None) or getattr(config, "environment", None))
    monitored = getattr(config, "hacking_monitor", None) is not None
    return ours or tools or monitored or config.reward_model is not None


def rollout_of(config: Any) -> str:
    """How completions are drawn on the plain path, ``stock`` or ``auto``, where the field itself may leave it open."""
    if config.rollout is not None:
        return str(config.rollout)
    return "auto" if sets_parts(config) and not _trl.other_samplers(vars(config)) else "stock"


def unread_keywords(owner: str, keywords: Any) -> list[str]:
    """Keywords without the part that reads them."""
    if not keywords:
        return []
    field = f"{owner}_kwargs"
    text = f"{field} is {keywords!r}, but {owner} is unset, so nothing would read it"
    return [f"{text}: set {owner}, or remove {field}."]

"""Config fields: mappings from YAML or JSON, and fields that are set."""

import copy
from collections.abc import Sequence
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import numbers, value_problems


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
    problems = [unknown("key", key, hints) for key in values if key not in hints]
    for key, hint in hints.items():
        problems += value_problems(key, values[key], hint) if key in values else []
    return values, [f"{field}: {problem}" for problem in problems]


def changed_fields(config: Any, names: Sequence[str]) -> list[str]:
    """The fields that differ from their default, in order; unknown ones are skipped."""
    fields = config.__dataclass_fields__
    return [name for name in names if name in fields and getattr(config, name) != default_of(fields[name])]


def default_of(spec: "Field[Any]") -> Any:
    """The default of a field; None where it has none."""
    if spec.default is not MISSING:
        return spec.default
    return None if spec.default_factory is MISSING else spec.default_factory()

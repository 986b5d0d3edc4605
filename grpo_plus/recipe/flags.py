"""Command-line flags of a part, ``--field VALUE`` and ``--field.key VALUE``, and fields of earlier versions."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from grpo_plus.recipe.forms import read_form, write_form
from grpo_plus.recipe.values import HEADS, StrictLoader, mapping, mapping_or_none
from grpo_verifiers.options import numbers

MOVED: Mapping[str, str] = {
    **{f"{name}_kwargs": f"{name}: {{name: NAME, KEYWORD: VALUE}}" for name, head in HEADS.items() if head == "name"},
    "engine_tokens_per_pass": "engine: {tokens_per_pass: N}",
    "rollout_rows": "rollout: {rows: N}",
    "vllm_sync": "rollout: {vllm_sync: WAY}",
    "record": "report: {record: true}",
    "report_steps": "report: {every: N}",
    "hacking_monitor": "diagnosis: {judge: strict}, with every, sample and against next to judge",
    "stop_on": "diagnosis: {stop_on: [FINDING]}",
}
"""Fields of earlier versions, and how the same is written now."""


def moved(names: Collection[str]) -> list[str]:
    """A sentence for each field that has moved into another."""
    return [f"{name} is written {MOVED[name]} now." for name in names if name in MOVED]


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
            except argparse.ArgumentError:  # a keyword of a built-in part already has a flag
                continue

"""The rows of a record, checked: whatever a file holds, what is drawn has the shape and the types that are told here.

A reader takes a value as JSON gives it and returns it checked, without fields that nobody knows; `Malformed` is raised
where it is something else.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Reader = Callable[[Any], Any]

LARGEST = 1e150
"""Of a figure: sums and squares of such are finite."""
FARTHEST = 2**53
"""Of steps and counts: integers that a page's script still tells apart."""
DEEPEST = 20
"""Levels of keywords and settings."""


class Malformed(ValueError):  # noqa: N818 - a row, not an error
    """A value of another type or shape than the record's."""


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise Malformed
    return value


def word(wanted: str) -> Reader:
    """This one string."""

    def read_word(value: Any) -> str:
        if value != wanted:
            raise Malformed
        return wanted

    return read_word


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Malformed
    return value


def whole(value: Any) -> int:
    """A count, a step or a place."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= FARTHEST:
        raise Malformed
    return value


def number(value: Any) -> float:
    """A figure to calculate with."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= LARGEST:
        raise Malformed
    return value


def score(value: Any) -> float | None:
    """A figure, or None where there is none: also for what is not finite."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return number(value)


def anything(value: Any, depth: int = 0) -> Any:
    """Plain data of any shape, not too deep."""
    if depth > DEEPEST:
        raise Malformed
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, list):
        return [anything(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {text(key): anything(item, depth + 1) for key, item in value.items()}
    raise Malformed


def mapping(value: Any) -> dict[str, Any]:
    """Plain data by name."""
    if not isinstance(value, dict):
        raise Malformed
    found: dict[str, Any] = anything(value)
    return found


def maybe(read: Reader) -> Reader:
    """What ``read`` reads, or None."""
    return lambda value: None if value is None else read(value)


def listed(read: Reader) -> Reader:
    """A list of what ``read`` reads."""

    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Malformed
        return [read(item) for item in value]

    return read_list


def together(*readers: Reader) -> Reader:
    """A list with one value for each reader."""

    def read_all(value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) != len(readers):
            raise Malformed
        return [read(item) for read, item in zip(readers, value, strict=True)]

    return read_all


def row(required: Mapping[str, Reader], optional: Mapping[str, Reader] | None = None) -> Reader:
    """A mapping with these fields."""

    def read_row(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not required.keys() <= value.keys():
            raise Malformed
        readers = {**(optional or {}), **required}
        return {name: read(value[name]) for name, read in readers.items() if name in value}

    return read_row


def figures(value: Any) -> dict[str, Any]:
    """What was logged at a step: numbers and lists of numbers; the rest is no figure."""
    if not isinstance(value, dict):
        raise Malformed
    found = {}
    for name, item in value.items():
        try:
            found[name] = listed(number)(item) if isinstance(item, list) else number(item)
        except Malformed:
            continue
    return found


SPAN = together(whole, whole)
STEP = together(whole, whole, score)
VERDICT = row({}, {"verifier": text, "status": text, "reason": text, "steps": listed(STEP)})
COMPLETION = row(
    {"pieces": listed(text)},
    {
        "tokens": maybe(whole),
        "truncated": maybe(flag),
        "rewards": maybe(listed(score)),
        "advantage": score,
        "token_advantages": maybe(listed(number)),
        "verdicts": maybe(listed(VERDICT)),
        "steps": maybe(listed(STEP)),
        "untrained": maybe(listed(SPAN)),
        "left_off": maybe(SPAN),
    },
)
GROUP = row(
    {
        "kind": word("group"),
        "step": whole,
        "mode": text,
        "group": whole,
        "rewards": listed(text),
        "completions": listed(COMPLETION),
    },
    {"prompt": text, "weights": maybe(listed(number)), "time": score},
)
METRICS = row({"kind": text, "step": whole, "values": figures}, {"time": score})
BEGIN = row({"step": whole})
_PART = row({"name": text}, {"keywords": maybe(mapping), "formula": text, "host": flag})
_REWARD = row({"name": text}, {"weight": score})
_VERIFIER = row({"label": text}, {"weight": score, "settings": maybe(mapping)})
_PARTS = row(
    {"advantage": _PART, "objective": _PART, "verifiers": listed(_VERIFIER)},
    {"rewards": listed(_REWARD), "eval_verifiers": listed(_VERIFIER), "engine": maybe(text), "rollout": maybe(text)},
)
SWEEP = row({"variant": lambda value: value if isinstance(value, str) else str(number(value))}, {"seed": maybe(number)})
RUN: Mapping[str, Reader] = {
    "schema": whole,
    "name": text,
    "status": text,
    "error": maybe(text),
    "started": score,
    "ended": score,
    "step": maybe(whole),
    "max_steps": maybe(number),  # -1 without a bound
    "resumed_from": maybe(whole),
    "model": row({}, {"name": text, "parameters": whole, "trainable": whole}),
    "parts": lambda value: _PARTS(value) if value != {} else {},
    "versions": lambda value: {text(key): text(item) for key, item in mapping(value).items()},
    "processes": maybe(whole),
    "device": maybe(text),
    "host": text,
    "pid": whole,
    "config": mapping,
    "golds": maybe(mapping),
}
"""The fields of ``run.json``, each of which may be missing or left out by itself."""


def known(value: Mapping[str, Any], readers: Mapping[str, Reader]) -> tuple[dict[str, Any], list[str]]:
    """The fields that can be read, and the names of those that cannot."""
    found, broken = {}, []
    for name, read in readers.items():
        if name not in value:
            continue
        try:
            found[name] = read(value[name])
        except Malformed:
            broken.append(name)
    return found, broken

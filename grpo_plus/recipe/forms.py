"""The one form of a part in a config: a word, or a mapping in which one key holds that word."""

from collections.abc import Collection, Mapping
from typing import Any

from grpo_plus.recipe.options import is_off, mapping

HEADS: Mapping[str, str] = {
    **dict.fromkeys(("advantage", "objective", "selection", "dead_groups"), "name"),
    "engine": "layout",
    "rollout": "how",
    "report": "record",
    "diagnosis": "judge",
}
"""The key that a word alone stands for."""
OFF: Mapping[str, Any] = {"dead_groups": "keep", "engine": "stock", "rollout": "stock", "report": False}
"""The word for false, where that is not the same as unset."""
MOVED: Mapping[str, str] = {
    **{f"{name}_kwargs": f"{name}: {{name: NAME, KEYWORD: VALUE}}" for name, head in HEADS.items() if head == "name"},
    "engine_tokens_per_pass": "engine: {tokens_per_pass: N}",
    "rollout_rows": "rollout: {rows: N}",
    "vllm_sync": "rollout: {vllm_sync: WAY}",
    "record": "report: {record: true}",
    "report_steps": "report: {every: N}",
    "hacking_monitor": "diagnosis: {judge: strict}, with every, sample and against beside judge",
    "stop_on": "diagnosis: {stop_on: [FINDING]}",
}
"""Fields of earlier versions, and how the same is written now."""


def moved(names: Collection[str]) -> list[str]:
    """A sentence for each field that has moved into another."""
    return [f"{name} is written {MOVED[name]} now." for name in names if name in MOVED]


def read_form(field: str, value: Any) -> dict[str, Any]:
    """The mapping that a value stands for; empty where it is unset.

    >>> read_form("advantage", "zscore"), read_form("engine", {"tokens_per_pass": 4096}), read_form("report", True)
    ({'name': 'zscore'}, {'tokens_per_pass': 4096}, {'record': True})
    """
    head = HEADS[field]
    if is_off(value):
        return {} if value is None or field not in OFF else {head: OFF[field]}
    if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{")):
        given = mapping(field, value)
        if head == "name" and not (isinstance(given.get(head), str) and given[head]):
            raise ValueError(f"{field} is {given!r}, which lacks a name: write {field}: {{name: NAME, …}}.")
        return given
    if field == "report" and str(value).lower() == "true":
        return {head: True}
    if isinstance(value, str):
        return {head: value}
    word = "true, false" if field == "report" else "a word"
    raise ValueError(f"{field} is {value!r}, expected {word} or a mapping with the key {head!r}.")


def named(field: str, value: Any) -> tuple[str | None, dict[str, Any]]:
    """The name of a part and its keywords; None for no name."""
    given = read_form(field, value)
    return given.pop("name", None), given


def name_of(config: Any, field: str) -> str | None:
    """The name of the part that a config chooses."""
    return named(field, getattr(config, field, None))[0]


def write_form(field: str, given: Mapping[str, Any]) -> Any:
    """The shortest value that is read as this mapping; None for an empty one."""
    head = HEADS[field]
    if set(given) == {head} and isinstance(given[head], str):
        return given[head]
    return dict(given) or None

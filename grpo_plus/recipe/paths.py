"""Relative paths of a config made absolute: they then mean the same on every rank and worker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def absolute(reference: str, base: Path) -> str:
    """A reference whose file path, if it has one, is absolute."""
    where, colon, attr = reference.partition(".py:")
    path = where + ".py" if colon else reference
    if not path.endswith(".py"):
        return reference
    return str((base / Path(path).expanduser()).resolve()) + (f":{attr}" if colon else "")


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


def absolute_start(options: dict[str, Any] | None, base: Path) -> dict[str, Any] | None:
    """A reward model's options with the folder that it starts from made absolute."""
    start = (options or {}).get("start")
    if options is None or not isinstance(start, str):
        return options
    return {**options, "start": str((base / Path(start).expanduser()).resolve())}


def absolute_judge(options: dict[str, Any], base: Path) -> dict[str, Any]:
    """The options of the diagnosis with the file of its judge made absolute."""
    return {**options, "judge": absolute_entry(options["judge"], base)} if "judge" in options else options

"""Fields of dataclasses, parsed from source: importing the host takes seconds."""

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Declared:
    """One field of a dataclass; ``default`` is as in YAML, "unset" for None, and ``help`` may be empty."""

    name: str
    kind: str
    default: str
    help: str


@lru_cache
def declared(path: Path, name: str) -> dict[str, Declared]:
    """The fields that a class in a source file declares; empty if the file or class is missing."""
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if found is None:
        return {}
    constants = _constants(found)
    fields = {}
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
            default, text = _value(node.value, constants)
            fields[field] = Declared(field, ast.unparse(node.annotation), default, text)
    return fields


def _constants(found: ast.ClassDef) -> dict[str, str]:
    """Names with literal values in the class body, with all their values: the machine may decide between them."""
    values: dict[str, list[str]] = {}
    for node in ast.walk(found):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(as_written(node.value.value))
    return {name: " or ".join(dict.fromkeys(texts)) for name, texts in values.items()}


def _value(node: ast.expr | None, constants: dict[str, str]) -> tuple[str, str]:
    """Default and help text of a field's right-hand side."""
    if not isinstance(node, ast.Call):
        return ("required" if node is None else _text(node, constants)), ""
    parts = {keyword.arg: keyword.value for keyword in node.keywords}
    default = "required"
    if "default" in parts:
        default = _text(parts["default"], constants)
    elif "default_factory" in parts:
        made = parts["default_factory"]
        empty = {"list": "[]", "dict": "{}"}
        default = _text(made.body, constants) if isinstance(made, ast.Lambda) else ast.unparse(made)
        default = empty.get(default, default)
    return default, _help(parts.get("metadata"))


def _help(metadata: ast.expr | None) -> str:
    if not isinstance(metadata, ast.Dict):
        return ""
    for key, value in zip(metadata.keys, metadata.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "help":
            text = value.value if isinstance(value, ast.Constant) else ast.unparse(value)
            return " ".join(str(text).replace("%%", "%").split())
    return ""


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return constants.get(node.id, node.id)
    try:
        return as_written(ast.literal_eval(node))
    except ValueError:
        return ast.unparse(node)


def as_written(value: Any) -> str:
    """A value in YAML; None is "unset"."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Fields of dataclasses, parsed from source: importing the host takes seconds."""

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StaticField:
    """A field of a dataclass; ``default`` is in YAML form, "unset" for None; ``help`` may be empty."""

    name: str
    kind: str
    default: str
    help: str


@lru_cache
def static_fields(path: Path, name: str) -> dict[str, StaticField]:
    """Return the fields declared by a class in a source file; empty if the file or class is missing."""
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owner = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if owner is None:
        return {}
    constants = _constants(owner)
    fields = {}
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
            default, text = _value(node.value, constants)
            fields[field] = StaticField(field, ast.unparse(node.annotation), default, text)
    return fields


def _constants(owner: ast.ClassDef) -> dict[str, str]:
    """Return the names with literal values in the class body, each with all its values: some depend on the machine."""
    values: dict[str, list[str]] = {}
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(as_written(node.value.value))
    return {name: " or ".join(dict.fromkeys(texts)) for name, texts in values.items()}


def _value(node: ast.expr | None, constants: dict[str, str]) -> tuple[str, str]:
    """Return default and help text from a field's right-hand side."""
    if not isinstance(node, ast.Call):
        return ("required" if node is None else _text(node, constants)), ""
    parts = {keyword.arg: keyword.value for keyword in node.keywords}
    default = "required"
    if "default" in parts:
        default = _text(parts["default"], constants)
    elif "default_factory" in parts:
        factory = parts["default_factory"]
        empty = {"list": "[]", "dict": "{}"}
        default = _text(factory.body, constants) if isinstance(factory, ast.Lambda) else ast.unparse(factory)
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
    """Return a value in YAML form; None is "unset"."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Names in tests, and the objects of a program for them."""

import ast
import builtins
from typing import Any


class MissingError(Exception):
    """The program has nothing of that name."""


def find(space: dict[str, Any], name: str) -> Any:
    """The object of a dotted name in a program's namespace; MissingError if it is not defined.

    A method that is named through its class gets an instance of it, created without arguments. One named alone may
    belong to a class ``Solution``.
    """
    parts = name.split(".")
    if parts[0] not in space and len(parts) == 1 and isinstance(space.get("Solution"), type):
        parts.insert(0, "Solution")
    if parts[0] not in space:
        raise MissingError
    target = space[parts[0]]
    for part in parts[1:]:
        if isinstance(target, type):
            member = next((vars(kind)[part] for kind in target.__mro__ if part in vars(kind)), None)
            if hasattr(member, "__get__") and not isinstance(member, staticmethod | classmethod | type):
                target = target()
        try:
            target = getattr(target, part)
        except AttributeError:
            raise MissingError from None
    return target


def unknown_names(tree: ast.AST) -> set[str]:
    """Names that the code reads and never binds."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        else:
            bound |= bound_by(node)
    return {name for name in read - bound if not hasattr(builtins, name)}


def bound_by(node: ast.AST) -> set[str]:
    """Names that a node binds, without its children."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return {node.name}
    return set()

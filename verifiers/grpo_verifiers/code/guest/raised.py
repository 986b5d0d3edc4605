"""Exceptions of a program in its tests: the nearest built-in class, and the names of the program's own.

A name that test code catches (``except Overdrawn:``, ``raises(Overdrawn)``) is a class of the tests' own. An exception
of the program is an instance of those that its classes share a name with.
"""

import ast
import builtins
import contextlib
from typing import Any

from .records import is_name
from .values import check, decode, dump, encode

_MAX_ARGUMENTS = 10_000
_MOST_NAMES = 20
_MAX_TOLD = 300
_UNFIT = ("Stop", "ExceptionGroup")
_CATCHING = frozenset({"raises", "assertRaises", "assertRaisesRegex", "suppress"})


class ProgramError(Exception):
    """Stands in the tests for an exception that the program raised and that has no built-in class."""


def caught_names(tree: ast.AST) -> set[str]:
    """Names that test code uses as classes of exceptions."""
    found: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            found.append(node.type)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _CATCHING:
            several = getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress"
            found += node.args if several else node.args[:1]
            found += [keyword.value for keyword in node.keywords if keyword.arg in {"expected_exception", "exception"}]
    found += [part for each in found if isinstance(each, ast.Tuple) for part in each.elts]
    return {each.id for each in found if isinstance(each, ast.Name)}


def describe(error: BaseException) -> list[Any]:
    """The nearest built-in class, the arguments, the names of its own classes, the fields; None: it cannot cross."""
    own: list[str] = []
    try:
        kinds = type(error).__mro__
        near = next(str(kind.__name__) for kind in kinds if kind.__module__ == "builtins")
        own = [str(kind.__name__) for kind in kinds if kind.__module__ in {"program", "__main__"}][:_MOST_NAMES]
    except BaseException:  # noqa: BLE001 - the program may have patched anything
        near = "Exception"
    fields = {name: item for name, item in getattr(error, "__dict__", {}).items() if is_name(name)}
    return [near, _crossing(lambda: error.args), own, _crossing(lambda: fields)]


def _crossing(value: Any) -> Any:
    """The tree of a value where all of that can cross."""
    try:
        tree = encode(value())
        return tree if len(dump(tree)) <= _MAX_ARGUMENTS else None
    except BaseException:  # noqa: BLE001 - as above
        return None


def exception(told: str, near: str, args: Any, own: list[str], fields: Any, *, caught: dict[str, type]) -> Exception:
    """The program's exception, of the built-in class of that name, with the arguments and fields that it had.

    Not of one that would end a loop of the test early, and pass it. ``told`` is its text, ``near`` the nearest built-in
    class, ``own`` the names of its other classes, the nearest first. ``args`` and ``fields`` are trees, or None.
    ``caught`` has the classes that the test catches.
    """
    names = [name for name in own if is_name(name)]
    kind = _class(names, near, caught)
    if names and told.startswith(f"{names[0]}: ") and len(told) < _MAX_TOLD:
        text = told.partition(": ")[2]
        kind.__str__ = lambda _: text  # type: ignore[method-assign]  # as its own class says it
    try:
        check(args)
        made = kind(told) if args is None else kind(*decode(args))
    except Exception:  # noqa: BLE001 - a stranger's arguments
        made = _class(names, "", caught)(told)
    for name, item in (decode(fields) if fields is not None else {}).items():
        if not hasattr(BaseException, name):
            made.__dict__[name] = item
    return made


def _class(names: list[str], near: str, caught: dict[str, type]) -> type[Exception]:
    """A class with the names of the program's own: built-in ones that it named its own after count, too."""
    kind = _built_in(near) or ProgramError
    if not names:
        return kind
    space = {"_names_": tuple(names), "__module__": "program"}
    mine = [caught[name] for name in names if name in caught]
    for more in ([found for name in names if (found := _built_in(name))], []):
        with contextlib.suppress(TypeError):  # classes that cannot have a child together
            return type(names[0], tuple(dict.fromkeys([*mine, *more, kind])), space)
    return type(names[0], (*mine, ProgramError), space)


def _built_in(name: str) -> type[Exception] | None:
    """The built-in class of an exception, if it may be raised in a test."""
    kind = getattr(builtins, name, None)
    fit = isinstance(kind, type) and issubclass(kind, Exception) and not name.startswith(_UNFIT)
    return kind if fit else None

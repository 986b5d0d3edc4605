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
_MAX_MESSAGE = 300
_UNFIT = ("Stop", "ExceptionGroup")
_CATCHING = frozenset({"raises", "assertRaises", "assertRaisesRegex", "suppress"})


class ProgramError(Exception):
    """In the tests: an exception of the program without a built-in class."""


def caught_names(tree: ast.AST) -> set[str]:
    """Names that test code uses as classes of exceptions."""
    classes: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            classes.append(node.type)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _CATCHING:
            several = getattr(node.func, "attr", getattr(node.func, "id", "")) == "suppress"
            classes += node.args if several else node.args[:1]
            classes += [each.value for each in node.keywords if each.arg in {"expected_exception", "exception"}]
    classes += [part for each in classes if isinstance(each, ast.Tuple) for part in each.elts]
    return {each.id for each in classes if isinstance(each, ast.Name)}


def describe(error: BaseException) -> list[Any]:
    """The nearest built-in class, the arguments, the names of its own classes, the fields; None if not transferable."""
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
    """The tree of a value, or None if a part of it cannot cross."""
    try:
        tree = encode(value())
        return tree if len(dump(tree)) <= _MAX_ARGUMENTS else None
    except BaseException:  # noqa: BLE001 - as above
        return None


def exception(message: str, near: str, args: Any, own: list[str], fields: Any, *, caught: dict[str, type]) -> Exception:
    """The program's exception, of the built-in class of that name, with the arguments and fields that it had.

    Not of one that would end a loop of the test early, and pass it. ``message`` is its text, ``near`` the nearest
    built-in class, ``own`` the names of its other classes, nearest first. ``args`` and ``fields`` are trees, or None.
    ``caught`` has the classes that the test catches.
    """
    names = [name for name in own if is_name(name)]
    kind = _class(names, near, caught)
    if names and message.startswith(f"{names[0]}: ") and len(message) < _MAX_MESSAGE:
        text = message.partition(": ")[2]
        kind.__str__ = lambda _: text  # type: ignore[method-assign]  # as its own class writes it
    try:
        check(args)
        result = kind(message) if args is None else kind(*decode(args))
    except Exception:  # noqa: BLE001 - untrusted arguments
        result = _class(names, "", caught)(message)
    for name, item in (decode(fields) if fields is not None else {}).items():
        if not hasattr(BaseException, name):
            result.__dict__[name] = item
    return result


def _class(names: list[str], near: str, caught: dict[str, type]) -> type[Exception]:
    """A class with the names of the program's own: built-in ones that it named its own after count, too."""
    kind = _built_in(near) or ProgramError
    if not names:
        return kind
    space = {"_names_": tuple(names), "__module__": "program"}
    mine = [caught[name] for name in names if name in caught]
    for more in ([named for name in names if (named := _built_in(name))], []):
        with contextlib.suppress(TypeError):  # classes that cannot have a child together
            return type(names[0], tuple(dict.fromkeys([*mine, *more, kind])), space)
    return type(names[0], (*mine, ProgramError), space)


def _built_in(name: str) -> type[Exception] | None:
    """The built-in class of an exception, if it may be raised in a test."""
    kind = getattr(builtins, name, None)
    fit = isinstance(kind, type) and issubclass(kind, Exception) and not name.startswith(_UNFIT)
    return kind if fit else None

"""Keyword arguments checked against a function's signature, all problems at once, before anything runs."""

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from grpo_verifiers.suggest import unknown

_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+\Z")


def numbers(value: Any) -> Any:
    """``value`` with strings such as ``3e-4``, which YAML 1.1 takes for text, turned into floats."""
    if isinstance(value, str) and _EXPONENT.match(value):
        return float(value)
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(item) for item in value]
    return value


def keywords_of(fn: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, inspect.Parameter]:
    """The parameters of ``fn`` that can be set by keyword, without those in ``skip``."""
    return {
        name: parameter
        for name, parameter in inspect.signature(fn).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name not in skip
    }


def takes_any_keyword(fn: Callable[..., Any]) -> bool:
    """Whether ``fn`` has a ``**kwargs``."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(fn).parameters.values())


def check_keywords(
    what: str, fn: Callable[..., Any], given: Mapping[str, Any], *, skip: Collection[str] = (), where: str = "keyword"
) -> list[str]:
    """Problems of calling ``fn`` with the keywords ``given``; an empty list when there are none.

    Checks unknown names (with the nearest match), missing required ones, and types as far as annotations say
    (``int`` passes for ``float``; ``bool`` never passes for a number; NaN never passes).

    Args:
        what: the thing in messages ("advantage estimator 'sign'").
        fn: the function that will be called.
        given: keywords from a config.
        skip: parameters that the caller fills itself.
        where: what one keyword is called in messages ("advantage_kwargs").
    """
    allowed = keywords_of(fn, skip)
    problems = []
    hints = _hints(fn)
    for name, value in given.items():
        if name not in allowed:
            if not takes_any_keyword(fn) or name in skip:
                problems.append(f"{what}: {unknown(where, name, allowed)}")
            continue
        if name in hints and not fits(value, hints[name]):
            problems.append(f"{what}: {where} {name!r} is {value!r}, expected {spell(hints[name])}.")
    missing = [name for name, p in allowed.items() if p.default is p.empty and name not in given]
    problems += [f"{what}: {where} {name!r} is required and missing." for name in missing]
    return problems


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    target = fn if inspect.isfunction(fn) or inspect.ismethod(fn) else getattr(fn, "__call__", fn)  # noqa: B004
    if inspect.isclass(fn):
        target = fn.__init__
    try:
        return typing.get_type_hints(target, include_extras=False)
    except Exception:  # noqa: BLE001 - an annotation that cannot be evaluated only means that types go unchecked
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a config may stand where ``hint`` is annotated."""
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_float(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is None:
        return isinstance(value, hint) if isinstance(hint, type) else True
    if not isinstance(origin, type):
        return True
    if not isinstance(value, origin) or isinstance(value, str | bytes):
        return False
    return _items_fit(value, origin, args)


def _is_float(value: float) -> bool:
    """Whether a number is one, and no integer beyond the largest float."""
    try:
        return not math.isnan(value)
    except OverflowError:
        return False


def _items_fit(value: Any, origin: type, args: tuple[Any, ...]) -> bool:
    """Whether the items of a collection fit the arguments of its annotation."""
    if issubclass(origin, Mapping) and len(args) == 2:
        return all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    if issubclass(origin, tuple):
        if len(args) == 2 and args[1] is Ellipsis:
            return all(fits(item, args[0]) for item in value)
        return len(value) == len(args) and all(fits(item, arg) for item, arg in zip(value, args, strict=True))
    if issubclass(origin, Collection) and len(args) == 1:
        return all(fits(item, args[0]) for item in value)
    return True


def spell(hint: Any) -> str:
    """An annotation in words for a message."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spell(arg) for arg in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    names = {float: "a number", int: "an integer", bool: "true or false", str: "a string", type(None): "nothing"}
    return names.get(hint, str(hint).replace("typing.", "").replace("collections.abc.", ""))

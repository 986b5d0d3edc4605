"""Check a model's arguments against a method's schema; the messages help the model to correct them.

Values are JSON values as read. True and false are no numbers; 3.0 is no integer, since the function would get a float.
An integer is a number where a float can hold it. A parameter whose hint admits None (``nullable``) takes null. Schema
keywords that ``get_json_schema`` never uses are left to the function.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from grpo_verifiers.errors.messages import cut, short, show, unknown
from grpo_verifiers.options import Range, fits
from grpo_verifiers.tools.part import Method

MAX_SIZE = 1_000_000
"""Characters of all arguments together, as JSON."""
_DEEP = "the arguments are nested too deep."

_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "string": (lambda value: isinstance(value, str), "a string"),
    "integer": (lambda value: isinstance(value, int) and not isinstance(value, bool), "an integer"),
    "number": (lambda value: fits(value, Annotated[float, Range(finite=True)]), "a number"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "null": (lambda value: value is None, "null"),
    "array": (lambda value: isinstance(value, list | tuple), "a list"),
    "object": (lambda value: isinstance(value, Mapping), "an object"),
}


def argument_problem(method: Method, arguments: Any) -> str | None:
    """The first reason why a method cannot be called with these arguments; None: it can.

    >>> add = Method("add", {"function": {"parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}})
    >>> argument_problem(add, {"a": 1}), argument_problem(add, {"a": "1"})
    (None, "add: a is '1', expected an integer.")
    >>> argument_problem(add, {"aa": 1})
    "add: unknown argument 'aa'. Did you mean 'a'? There is: a."
    """
    if not isinstance(arguments, Mapping):
        return f"{method.name}: arguments are {_text(arguments)}, expected an object: a name and a value for each."
    if (problem := _size_problem(arguments)) is not None:
        return f"{method.name}: {problem}"
    parameters = method.schema["function"]["parameters"]
    properties = parameters.get("properties", {})
    required = parameters.get("required", ())
    for name in arguments:
        if not isinstance(name, str) or name not in properties:
            return f"{method.name}: {unknown('argument', _cut(name), properties)}"
    missing = [name for name in required if name not in arguments]
    if missing:
        has = f" It takes: {', '.join(properties)}." if len(properties) > 1 else ""
        return f"{method.name}: the argument {missing[0]!r} is missing.{has}"
    try:
        problems = (_value_problem(name, value, properties[name]) for name, value in arguments.items())
        problem = next(filter(None, problems), None)
    except RecursionError:
        problem = _DEEP
    return None if problem is None else f"{method.name}: {problem}"


def _value_problem(where: str, value: Any, schema: Any) -> str | None:
    if not isinstance(schema, Mapping) or (value is None and schema.get("nullable")):
        return None
    if ("enum" in schema and not any(_equal(value, each) for each in schema["enum"])) or not _has_type(value, schema):
        return _refusal(where, value, schema)
    if "anyOf" not in schema:
        return _inner_problem(where, value, schema)
    ways = [(_value_problem(where, value, each), _has_type(value, each)) for each in schema["anyOf"]]
    like = [inner for inner, same_type in ways if same_type]
    if not all(inner for inner, _ in ways):
        return None
    return like[0] if len(like) == 1 else _refusal(where, value, schema)


def _refusal(where: str, value: Any, schema: Mapping[str, Any]) -> str:
    return f"{where} is {_text(value)}, expected {_expected(schema)}."


def _inner_problem(where: str, value: Any, schema: Mapping[str, Any]) -> str | None:
    if isinstance(value, list | tuple):
        first = schema.get("prefixItems", ())
        if first and len(value) != len(first):
            return f"{where} has {len(value)} items, expected {len(first)}."
        kinds = [*first] or [schema.get("items", {})] * len(value)
        pairs = ((f"{where}[{at}]", item, kind) for at, (item, kind) in enumerate(zip(value, kinds, strict=True)))
    elif isinstance(value, Mapping):
        kind = schema.get("additionalProperties", {})
        pairs = ((f"{where}[{_cut(key)!r}]", item, kind) for key, item in value.items())
    else:
        return None
    return next(filter(None, (_value_problem(*pair) for pair in pairs)), None)


def _has_type(value: Any, schema: Mapping[str, Any]) -> bool:
    named = schema.get("type")
    names = [named] if isinstance(named, str) else list(named or ())
    checks = [_KINDS[name] for name in names if name in _KINDS]
    return len(checks) < len(names) or not names or any(test(value) for test, _ in checks)


def _expected(schema: Mapping[str, Any]) -> str:
    null = " or null" if schema.get("nullable") else ""
    if "enum" in schema:
        return "one of " + ", ".join(_text(each) for each in schema["enum"][:60]) + null
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_expected(each) for each in schema["anyOf"])) + null
    named = schema.get("type", ())
    names = [named] if isinstance(named, str) else list(named)
    return (" or ".join(_KINDS[name][1] if name in _KINDS else name for name in names) or "another value") + null


def _equal(value: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, and 1 is not 1.0, which the function would take for another type."""
    return type(value) is type(other) and bool(value == other)


def _size_problem(arguments: Mapping[Any, Any]) -> str | None:
    try:
        size = len(json.dumps(arguments, allow_nan=False))
    except RecursionError:
        return _DEEP
    except (TypeError, ValueError) as error:
        return f"the arguments are not JSON: {error}."
    return f"the arguments have {size:,} characters, the maximum is {MAX_SIZE:,}." if size > MAX_SIZE else None


def _text(value: Any) -> str:
    """A value as the model may have written it, cut."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return show(value) if isinstance(value, str) else short(value)


def _cut(name: Any) -> str:
    return cut(name if isinstance(name, str) else type(name).__name__, 60)

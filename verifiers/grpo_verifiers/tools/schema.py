"""The schema of a function as chat templates show it to the model: what transformers makes of hints and docstring."""

import functools
import inspect
import json
from collections.abc import Callable, Collection
from typing import Any

from grpo_verifiers.errors import KeywordError


def signature_problems(fn: Callable[..., Any], hidden: Collection[str] = ()) -> list[str]:
    """All that keeps a function from having a schema, but for its hints' own types and the docstring's arguments.

    ``hidden`` parameters are not the model's to fill.
    """
    problems = []
    for each in inspect.signature(fn).parameters.values():
        if each.name in hidden:
            if each.kind is each.POSITIONAL_ONLY:
                problems.append(f"the parameter {each.name!r} is set by the config, and cannot be set by name.")
            continue
        if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            problems.append(f"it takes {stars}{each.name}, of which no schema can be made: name each argument.")
        elif each.kind is each.POSITIONAL_ONLY:
            problems.append(f"the argument {each.name!r} is positional only: the model gives arguments by name.")
        elif each.annotation is each.empty:
            problems.append(f"the argument {each.name!r} has no type hint: write {each.name}: str, or what it is.")
    doc = inspect.getdoc(fn)
    if not doc or not doc.strip():
        problems.append("it has no docstring, from which the model would learn what it does.")
    else:
        problems += _undescribed(fn, doc.strip(), hidden)
    if inspect.iscoroutinefunction(fn):
        problems.append("it is async: write a plain function, which runs in a process of its own.")
    return problems


def _undescribed(fn: Callable[..., Any], doc: str, hidden: Collection[str]) -> list[str]:
    try:
        from transformers.utils.chat_template_utils import parse_google_format_docstring
    except ImportError as error:
        raise KeywordError(_MISSING) from error
    _, described, _ = parse_google_format_docstring(doc)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(fn).parameters.items()
    wanted = [name for name, each in parameters if name not in hidden and each.kind not in several]
    return [
        f"its docstring does not describe the argument {name!r}: add a line '{name}: ...' below 'Args:'."
        for name in wanted
        if name not in (described or {})
    ]


def schema_of(fn: Callable[..., Any], name: str, hidden: Collection[str] = ()) -> dict[str, Any]:
    """What ``transformers.utils.get_json_schema`` makes of a function, under a name and without hidden parameters."""
    try:
        from transformers.utils import get_json_schema
    except ImportError as error:
        raise KeywordError(_MISSING) from error
    try:
        schema: dict[str, Any] = get_json_schema(_without(fn, hidden) if hidden else fn)
        schema["function"]["name"] = name
        json.dumps(schema, allow_nan=False)
    except Exception as error:
        said = " ".join(str(error).split())
        raise KeywordError(f"no schema can be made of it: {type(error).__name__}: {said}") from error
    return schema


_MISSING = (
    "the schema of a tool is made by transformers, which is not installed: pip install 'transformers>=5.3'. Where "
    "tools run, it is not needed."
)


def _without(fn: Callable[..., Any], hidden: Collection[str]) -> Callable[..., Any]:
    """A stand-in with the same name and docstring that has some parameters less."""

    @functools.wraps(fn)
    def shown() -> None: ...

    signature = inspect.signature(fn)
    kept = [each for name, each in signature.parameters.items() if name not in hidden]
    shown.__signature__ = signature.replace(parameters=_in_order(kept))  # type: ignore[attr-defined]  # inspect reads it
    shown.__annotations__ = {
        name: hint for name, hint in getattr(fn, "__annotations__", {}).items() if name not in hidden
    }
    return shown


def _in_order(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Keyword-only, which any order suits: one with a default may then stand before one without."""
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]

"""The methods of a tool or environment for the model, and their schemas, which transformers derives."""

import functools
import inspect
import json
from collections.abc import Callable, Collection
from typing import Any

from grpo_verifiers.errors import KeywordError

NOT_TOOLS = ("reset", "get_reward", "get_turn_reward", "state_key")
"""Public methods for the trainer, not for the model."""


def signature_problems(fn: Callable[..., Any], hidden: Collection[str] = ()) -> list[str]:
    """Parameters that have no place in a schema; the model does not fill ``hidden`` ones."""
    problems = []
    for each in inspect.signature(fn).parameters.values():
        if each.kind is each.POSITIONAL_ONLY:
            problems.append(f"the parameter {each.name!r} is positional only: arguments come by name.")
        elif each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD} and each.name not in hidden:
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            problems.append(f"it takes {stars}{each.name}, which has no schema: name each argument.")
    if inspect.iscoroutinefunction(fn):
        problems.append("it is async: write a plain function, which runs in a process of its own.")
    return problems


def schema_of(fn: Callable[..., Any], name: str, hidden: Collection[str] = ()) -> dict[str, Any]:
    """The schema of a function by ``transformers.utils.get_json_schema``, under a name, without hidden parameters."""
    try:
        from transformers.utils import get_json_schema
    except ImportError as error:
        raise KeywordError(_MISSING) from error
    try:
        schema: dict[str, Any] = get_json_schema(_without(fn, hidden) if hidden else fn)
        schema["function"]["name"] = name
        json.dumps(schema, allow_nan=False)
    except Exception as error:
        text = " ".join(str(error).split())
        raise KeywordError(f"its schema cannot be derived: {type(error).__name__}: {text}") from error
    return schema


_MISSING = (
    "the schema of a tool is derived by transformers, which is not installed: pip install 'transformers>=5.3'. Where "
    "tools run, it is not needed."
)


def _without(fn: Callable[..., Any], hidden: Collection[str]) -> Callable[..., Any]:
    """A stand-in with the same name and docstring, without hidden parameters."""

    @functools.wraps(fn)
    def shown() -> None: ...

    signature = inspect.signature(fn)
    # keyword-only: a parameter with a default may then precede one without
    own = [each.replace(kind=each.KEYWORD_ONLY) for name, each in signature.parameters.items() if name not in hidden]
    shown.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]  # inspect reads it
    shown.__annotations__ = {
        name: hint for name, hint in getattr(fn, "__annotations__", {}).items() if name not in hidden
    }
    return shown


def environment_members(cls: type) -> list[str]:
    """The public methods of a class in the order in which TRL shows them: by name."""
    members = inspect.getmembers(cls, predicate=inspect.isfunction)
    names = [name for name, _ in members if not name.startswith("_") and name not in NOT_TOOLS]
    return [name for name in names if not isinstance(inspect.getattr_static(cls, name), staticmethod)]


def blank(cls: Any) -> Any:
    """An object of the class without its ``__init__``, to inspect bound methods without calls."""
    try:
        return object.__new__(cls)
    except TypeError:  # a subclass of a class in C
        return cls.__new__(cls)


def reset_columns(cls: type) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The required columns of ``reset``, and all that it takes (None: any)."""
    named = [each for each in _of_reset(cls) if each.kind is not each.VAR_KEYWORD]
    needed = tuple(each.name for each in named if each.default is each.empty)
    return needed, tuple(each.name for each in named) if len(named) == len(_of_reset(cls)) else None


def reset_problems(cls: type) -> list[str]:
    """The problems with the method ``reset``."""
    reset = getattr(cls, "reset", None)
    if not inspect.isfunction(reset):
        problem = f"the class {cls.__qualname__} has no method reset, which readies it for a row"
        return [f"{problem}: write def reset(self, **columns)."]
    if inspect.iscoroutinefunction(reset):
        return ["reset is async: write a plain function."]
    parameters = _of_reset(cls)
    if not parameters:
        problem = "reset takes no columns: it is called with those of the row"
        return [f"{problem}. Write def reset(self, **columns), or name the ones that it needs."]
    wrong = [each.name for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.VAR_POSITIONAL}]
    return [f"reset takes {', '.join(wrong)} by place: columns come by name."] if wrong else []


def _of_reset(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.reset).parameters.values())[1:]  # type: ignore[attr-defined]  # judged above

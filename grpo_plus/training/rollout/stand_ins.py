"""What TRL takes for tools and environments: functions and classes with their schemas, which only ask a session."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.registry import import_reference
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.schema import blank

Ask = Callable[[str, Mapping[str, Any]], Any]
"""Calls a method, by name and arguments."""


def tool_stand_in(part: ToolPart, ask: Ask) -> Callable[..., Any]:
    """A function with the schema of a tool."""
    found = import_reference(part.reference)
    called = found.__call__.__get__(blank(found)) if inspect.isclass(found) else found
    (method,) = part.methods
    wanted = method.schema["function"]["parameters"]["properties"]
    signature = inspect.signature(called)
    kept = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in signature.parameters.items()
        if name in wanted
    ]
    made = _asking(called, method, ask)
    made.__signature__ = signature.replace(parameters=kept)
    hints = getattr(called, "__annotations__", {})
    made.__annotations__ = {name: hint for name, hint in hints.items() if name in wanted or name == "return"}
    return _checked(made, method)


def environment_stand_in(part: ToolPart, asked: Mapping[str, Callable[..., Any]]) -> type:
    """A class with the methods of an environment and their schemas.

    ``asked`` has what runs for ``reset`` and, where the environment rewards, ``get_reward``; and under ``call`` what
    runs for its methods. All are given the instance first.
    """
    found = import_reference(part.reference)
    members: dict[str, Any] = {
        "reset": lambda self, **columns: asked["reset"](self, columns),
        "__doc__": found.__doc__,
    }
    if part.rewards:
        members["get_reward"] = lambda self: asked["get_reward"](self)  # noqa: PLW0108 - a bound method binds nobody
    for method in part.methods:

        def run(self: Any, *, _name: str = method.name, **arguments: Any) -> Any:
            return asked["call"](self, _name, arguments)

        members[method.name] = functools.wraps(getattr(found, method.name))(run)
    made = type(part.label, (), members)
    for method in part.methods:
        _checked(getattr(made(), method.name), method)
    return made


def _asking(fn: Callable[..., Any], method: Method, ask: Ask) -> Any:
    @functools.wraps(fn)
    def made(**arguments: Any) -> Any:
        return ask(method.name, arguments)

    made.__name__ = method.name
    return made


def _checked(made: Callable[..., Any], method: Method) -> Callable[..., Any]:
    """The stand-in, once its schema is that of the tool: what is shown to the model is what runs."""
    from transformers.utils import get_json_schema

    if get_json_schema(made) != method.schema:
        raise VerifierFailedError(f"the tool {method.name!r} cannot be shown to the model as it is.")
    return made

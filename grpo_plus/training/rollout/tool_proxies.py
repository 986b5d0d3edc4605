"""Functions and classes with the schemas of tools and environments, for TRL; each call is forwarded to a session."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.registry import import_reference
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.schema import blank


def tool_proxy(part: ToolPart, forward: Callable[[str, Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """A function with the schema of a tool; ``forward`` gets the tool's name and the arguments."""
    target = import_reference(part.reference)
    called = target.__call__.__get__(blank(target)) if inspect.isclass(target) else target
    (method,) = part.methods
    names = method.schema["function"]["parameters"]["properties"]
    signature = inspect.signature(called)

    @functools.wraps(called)
    def proxy(**arguments: Any) -> Any:
        return forward(method.name, arguments)

    proxy.__name__ = method.name
    proxy.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if name in names
        ]
    )
    hints = getattr(called, "__annotations__", {})
    proxy.__annotations__ = {name: hint for name, hint in hints.items() if name in names or name == "return"}
    _check_schema(proxy, method)
    return proxy


def environment_proxy(part: ToolPart, handlers: Mapping[str, Callable[..., Any]]) -> type:
    """A class with the methods of an environment and their schemas.

    ``handlers`` has the functions for ``reset``, for ``get_reward`` (of environments that reward), and for all other
    methods under ``call``. The first argument of each is the instance.
    """
    target = import_reference(part.reference)
    members: dict[str, Any] = {
        "reset": lambda self, **columns: handlers["reset"](self, columns),
        "__doc__": target.__doc__,
    }
    if part.rewards:
        members["get_reward"] = lambda self: handlers["get_reward"](self)  # noqa: PLW0108 - a bound method has no self
    for method in part.methods:

        def run(self: Any, *, _name: str = method.name, **arguments: Any) -> Any:
            return handlers["call"](self, _name, arguments)

        members[method.name] = functools.wraps(getattr(target, method.name))(run)
    proxy = type(part.label, (), members)
    for method in part.methods:
        _check_schema(getattr(proxy(), method.name), method)
    return proxy


def _check_schema(proxy: Callable[..., Any], method: Method) -> None:
    """Refuse a proxy whose schema is not the tool's: the model must see the tool that runs."""
    from transformers.utils import get_json_schema

    if get_json_schema(proxy) != method.schema:
        raise VerifierFailedError(f"the tool {method.name!r} cannot be shown to the model as it is.")

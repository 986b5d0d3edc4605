"""What of an environment's class the model may call, and what ``reset`` takes."""

import inspect
from typing import Any

NOT_TOOLS = ("reset", "get_reward", "get_turn_reward", "state_key")
"""Public methods that the trainer calls, and the model never."""


def environment_members(cls: type) -> list[str]:
    """The public methods of a class in the order in which TRL shows them: by name."""
    found = inspect.getmembers(cls, predicate=inspect.isfunction)
    names = [name for name, _ in found if not name.startswith("_") and name not in NOT_TOOLS]
    return [name for name in names if not isinstance(inspect.getattr_static(cls, name), staticmethod)]


def blank(cls: Any) -> Any:
    """An object of the class without its ``__init__``: to look at bound methods, never to call them."""
    try:
        return object.__new__(cls)
    except TypeError:  # a class that is built on one written in C
        return cls.__new__(cls)


def reset_columns(cls: type) -> tuple[str, ...]:
    """The columns that ``reset`` cannot do without."""
    ways = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(each.name for each in _of_reset(cls) if each.kind in ways and each.default is each.empty)


def reset_problems(cls: type) -> list[str]:
    """The problems with the method ``reset``."""
    reset = getattr(cls, "reset", None)
    if not inspect.isfunction(reset):
        return [
            (
                f"the class {cls.__qualname__} has no method reset, which readies it for a row: write "
                "def reset(self, **columns)."
            )
        ]
    if inspect.iscoroutinefunction(reset):
        return ["reset is async: write a plain function."]
    parameters = _of_reset(cls)
    if not parameters:
        return [
            (
                "reset takes no columns: it is called with those of the row. Write def reset(self, **columns), or name "
                "the ones that it needs."
            )
        ]
    wrong = [each.name for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.VAR_POSITIONAL}]
    return [f"reset takes {', '.join(wrong)} by place: columns come by name."] if wrong else []


def _of_reset(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.reset).parameters.values())[1:]  # type: ignore[attr-defined]  # judged above


def reset_takes(cls: type) -> tuple[str, ...] | None:
    """All columns that ``reset`` takes; None: any."""
    taken = _of_reset(cls)
    if any(each.kind is each.VAR_KEYWORD for each in taken):
        return None
    return tuple(each.name for each in taken)

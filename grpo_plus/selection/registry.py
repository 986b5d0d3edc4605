"""The registry of selections, and the decorator that adds to it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from grpo_plus.selection.part import Selection
from grpo_verifiers.registry import Registry, part_of_function, source_of
from grpo_verifiers.rules import PartRule

F = TypeVar("F", bound=Callable[..., Any])

_BUILTINS = (
    "contrast", "curriculum", "uniform",
)  # fmt: skip


def _adopt(name: str, value: Any) -> Selection:
    return value if isinstance(value, Selection) else part_of_function(value, Selection) or Selection(name, value)


selections: Registry[Selection] = Registry(
    "selection",
    builtins={name: f"grpo_plus.selection.{name}:SELECTION" for name in _BUILTINS},
    group="grpo_plus.selection",
    adopt=_adopt,
)
"""All selections."""


def register_selection(
    name: str, *, weighted: bool = True, formula: str = "", rules: Sequence[PartRule] = ()
) -> Callable[[F], F]:
    """Register a selection; the function itself does not change.

    >>> from grpo_plus.selection import PromptHistory, selection_weights
    >>> @register_selection("doc_unseen")
    ... def unseen(history: PromptHistory, *, factor: float = 2.0):
    ...     return 1 + factor * (history.drawn == 0)
    >>> selection_weights("doc_unseen", PromptHistory.of([[1, 0], []])).tolist()
    [1.0, 3.0]
    >>> selections.unregister("doc_unseen")

    Args:
        name: the name to choose it by.
        weighted: the default of the keyword ``weighted``: groups are weighted back to all prompts alike. False makes
            it a curriculum.
        formula: one line for people; by default the docstring's first line.
        rules: its requirements and exclusions, such as ``[excludes("fp16", "why")]`` (`grpo_verifiers.rules`).

    Raises:
        DuplicateNameError: the name exists; the message shows both sides.
    """
    if not isinstance(name, str):
        raise TypeError(
            f'register_selection takes the name first: @register_selection("mine"), not {type(name).__name__}.'
        )

    def decorate(fn: F) -> F:
        selections.register(name, Selection(name, fn, formula, weighted, rules=tuple(rules)), source=source_of(fn))
        return fn

    return decorate


def get_selection(name: str) -> Selection:
    """Return the selection of a built-in, registered or installed name, ``package.module:attr`` or ``./file.py:attr``.

    >>> get_selection("contrast").name
    'contrast'

    Raises:
        UnknownNameError: lists the names and the nearest match.
        PluginError: it cannot be imported; its own traceback is the cause.
    """
    return selections.get(name)


def selection_of(part: "str | Selection | Callable[..., Any]") -> Selection:
    """Return the selection of a name, of a selection itself, or of a function."""
    return part if isinstance(part, Selection) else selections.resolve(part)

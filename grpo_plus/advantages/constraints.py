"""Value ranges of keywords, declared in the annotation beside the default and checked before anything runs.

``eps: Annotated[float, AtLeast(0.0)] = 1e-4`` is all that an estimator writes; type checkers see a float. Anything else
with a ``problem(value)`` method works in the same place.
"""

import contextlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from grpo_verifiers.keywords import fits

_LARGEST = sys.float_info.max


@runtime_checkable
class Constraint(Protocol):
    """What may stand in ``Annotated`` beside the type of a keyword."""

    def problem(self, value: Any) -> str | None:
        """What is expected instead of ``value``, or None when it is fine."""


@dataclass(frozen=True)
class AtLeast:
    """A finite number, ``low`` or more."""

    low: float

    def problem(self, value: float) -> str | None:
        """What is expected instead of ``value``, or None when it is fine."""
        return None if self.low <= value <= _LARGEST else f"a finite number of at least {self.low:g}"


@dataclass(frozen=True)
class Finite:
    """Any number but an infinite one."""

    def problem(self, value: float) -> str | None:
        """What is expected instead of ``value``, or None when it is fine."""
        return None if abs(value) <= _LARGEST else "a finite number"


Eps = Annotated[float, AtLeast(0.0)]
"""What is added to a standard deviation before dividing by it."""
Ddof = Literal[0, 1]
"""0: population, 1: sample standard deviation."""


def range_problems(what: str, hints: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Problems of values that have the right type but lie outside the declared range."""
    problems = []
    for name, value in given.items():
        hint = hints.get(name)
        if typing.get_origin(hint) is not Annotated:
            continue
        kind, *constraints = typing.get_args(hint)
        if value is None or not fits(value, kind):
            continue  # the type check says so already
        expected = (c.problem(value) for c in constraints if isinstance(c, Constraint))
        problems += [f"{what}: keyword {name!r} is {value!r}, expected {text}." for text in expected if text]
    return problems


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The evaluated annotations of a function or callable object, ``Annotated`` included.

    Those that cannot be evaluated (a type imported for type checkers only) are left out: values go unchecked there.
    """
    target = fn if hasattr(fn, "__code__") else getattr(fn, "__call__", fn)  # noqa: B004 - the method is wanted
    found: dict[str, Any] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(Exception):  # evaluating an annotation may raise anything
            found |= typing.get_type_hints(alone, getattr(target, "__globals__", {}), include_extras=True)
    return found

"""The values of options, checked once when a config is built and again when a check is called directly."""

import importlib
import inspect
import math
import re
import typing
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.options import fits

_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class OptionCheck:
    """Calls the ``check_options`` that stands beside a check, with the check's defaults filled in.

    Unknown, missing and mistyped options are the keyword check's to report, so that nothing is reported twice.

    Attributes:
        module: where the check is defined.
        name: the check.
    """

    module: str
    name: str

    def __call__(self, **given: Any) -> list[str]:
        """The problems with the values in ``given``; an empty list when there are none."""
        loaded = importlib.import_module(self.module)
        fn = getattr(loaded, self.name)
        hints = typing.get_type_hints(fn)
        options = {
            name: given.get(name, parameter.default)
            for name, parameter in inspect.signature(fn).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        if any(value is inspect.Parameter.empty or not fits(value, hints[name]) for name, value in options.items()):
            return []
        problems: list[str] = loaded.check_options(**options)
        return problems


def require(check: str, problems: list[str]) -> None:
    """Raise all problems of a check's options at once, if there are any."""
    if problems:
        raise ValueError(f"{check}: {' '.join(problems)}")


def integer(name: str, value: object, low: int, high: int | None = None) -> list[str]:
    """The problem with an option that must be a whole number from ``low`` to ``high``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high):
        return []
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    return [f"{name} is {value!r}, expected an integer {bounds}."]


def number(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, *, below_high: bool = False
) -> list[str]:
    """The problem with an option that must be a finite number in a range; ``below_high`` leaves the top out."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if real and low <= value <= high and not (below_high and value == high):  # type: ignore[operator]  # real: a number
        return []
    bounds = [f"at least {low:g}"] if low > -math.inf else []
    if high < math.inf:
        bounds.append(f"{'below' if below_high else 'at most'} {high:g}")
    return [f"{name} is {value!r}, expected a finite number{' of ' if bounds else ''}{' and '.join(bounds)}."]


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> list[str]:
    """The problem with an option that must be one of a few words."""
    if isinstance(value, str) and value in allowed:
        return []
    return [f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}."]


def tag_name(name: str, value: object) -> list[str]:
    """The problem with an option that must be a tag's name, without its angle brackets."""
    if isinstance(value, str) and _TAG.fullmatch(value):
        return []
    allowed = "letters, digits, '_', '-' and '.', starting with a letter, without angle brackets (such as 'think')"
    return [f"{name} is {value!r}, expected a tag's name: {allowed}."]

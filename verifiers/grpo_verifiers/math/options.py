"""The options of the math verifier: which statements count as the answer, and which answers are equal."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from grpo_verifiers.options import Range, TagName, option_problems

Conflicts = Literal["reject", "last"]
Matching = Literal["match", "ignore"]
Percent = Literal["either", "value"]
Decimals = Annotated[int, Range(0, 15)]


@dataclass(frozen=True)
class Options:
    """Policies of the math verifier, documented at :func:`grpo_verifiers.math.math`."""

    conflicts: Conflicts = "last"
    last_number: bool = False
    evaluated: bool = True
    reduced: bool = True
    units: Matching = "match"
    bases: Matching = "match"
    percent: Percent = "either"
    decimals: Decimals = 4
    decimal_comma: bool = True
    think: TagName | None = "think"
    copies: bool = False


DEFAULTS = Options()
_LENIENT: tuple[tuple[str, Any], ...] = (
    ("last_number", True), ("evaluated", False), ("reduced", False), ("units", "ignore"), ("bases", "ignore"),
    ("percent", "either"), ("decimals", 3), ("decimals", 2), ("decimal_comma", True), ("conflicts", "last"),
    ("conflicts", "reject"),
)  # fmt: skip


def option_for(options: Options, names: Collection[str], accepts: Callable[[Options], bool]) -> str:
    """The first of these options that accepts a refused answer, written as a Python keyword; empty if none does."""
    for name, other in _LENIENT:
        stricter = name == "decimals" and 0 < options.decimals < int(other)
        unused = name in names and not stricter and getattr(options, name) != other
        if unused and accepts(replace(options, **{name: other})):
            return f"{name}={other!r}"
    return ""


_NAMES = [field.name for field in fields(Options)]


def options_of(*values: Any, **keywords: Any) -> Options:
    """Options from positional values and keywords, cached; an unknown name raises with the nearest match."""
    if not values and not keywords:
        return DEFAULTS
    try:
        return _cached_options(*values, **keywords)
    except TypeError:  # a value that has no hash, or a wrong one
        return _new_options(*values, **keywords)


def _new_options(*values: Any, **keywords: Any) -> Options:
    named = dict(zip(_NAMES, values, strict=False)) | keywords
    if problems := option_problems("math", Options, named, where="option", bare=True):
        raise ValueError("\n".join(problems))
    return Options(**named)


_cached_options = lru_cache(maxsize=256, typed=True)(_new_options)  # typed: 1 is no option where True is

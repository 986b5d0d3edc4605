"""The options of the math verifier: which statements count as the answer, and which answers are equal."""

from dataclasses import dataclass, fields
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
    percent: Percent = "either"
    decimals: Decimals = 4
    think: TagName | None = "think"


DEFAULTS = Options()
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

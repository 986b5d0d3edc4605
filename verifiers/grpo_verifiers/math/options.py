"""The options of the math verifier: what counts as one clear answer, and what as the same answer."""

from collections.abc import Callable
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
    """Policies of the math verifier, as :func:`grpo_verifiers.math.math` tells."""

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
_LENIENT: dict[str, Any] = {
    "evaluated": False, "reduced": False, "units": "ignore", "bases": "ignore", "percent": "either", "decimals": 3,
    "decimal_comma": True,
}  # fmt: skip


def option_for(options: Options, answers: int, accepts: Callable[[Options], bool]) -> str:
    """The one option that makes a refused answer count, as it is written in Python; empty where none does.

    ``answers`` are stated in the completion. All options are tried together first, for most answers are just wrong.
    """
    changes = {name: value for name, value in _LENIENT.items() if answers and getattr(options, name) != value}
    if 0 < options.decimals <= 3:
        changes.pop("decimals", None)
    if changes and answers == 1 and not accepts(replace(options, **changes)):
        return ""
    if not answers and not options.last_number:
        changes = {"last_number": True}
    if answers > 1:
        changes["conflicts"] = "last" if options.conflicts == "reject" else "reject"
    found = (f"{name}={value!r}" for name, value in changes.items() if accepts(replace(options, **{name: value})))
    return next(found, "")


_NAMES = [field.name for field in fields(Options)]


def options_of(*values: Any, **given: Any) -> Options:
    """Options from values in their order and keywords, made once; an unknown one raises with the nearest match."""
    if not values and not given:
        return DEFAULTS
    try:
        return _kept(*values, **given)
    except TypeError:  # a value that has no hash, or a wrong one
        return _made(*values, **given)


def _made(*values: Any, **given: Any) -> Options:
    named = dict(zip(_NAMES, values, strict=False)) | given
    if problems := option_problems("math", Options, named, where="option", bare=True):
        raise ValueError("\n".join(problems))
    return Options(**named)


_kept = lru_cache(maxsize=256, typed=True)(_made)  # typed: 1 is no option where True is

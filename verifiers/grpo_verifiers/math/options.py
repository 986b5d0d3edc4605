"""The options of the math verifier: what counts as one clear answer, and what as the same answer."""

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
    r"""Policies of the math verifier; the defaults are the strict ones.

    Attributes:
        conflicts: ``"reject"``: everything stated as the final answer (every box, tag and "the answer is") must be
            right. ``"last"``: only the last statement of the strongest form counts.
        last_number: where no answer is stated at all, the last number of the text counts as one.
        evaluated: the answer must be worked out as far as the gold is: ``17 \times 23`` is no answer for 391.
        reduced: a fraction of integers must be in lowest terms, unless the gold's is not.
        units: ``"match"``: a unit may be left out, but not be another one. ``"ignore"``: units never matter.
        bases: ``"match"``: a number written with a base subscript needs the same base and digits. ``"ignore"``: the
            subscript may be left out.
        percent: ``"either"``: ``10\%`` is both 10 and 0.1. ``"value"``: it is 0.1 only.
        decimals: an irrational or repeating value may be given as a decimal of this many significant digits or more,
            rounded or cut correctly; 0 asks for exact values.
        decimal_comma: ``1000,99`` may stand for 1000.99.
        think: name of a thinking tag beside those of known models; None takes the completion as it is.
    """

    conflicts: Conflicts = "reject"
    last_number: bool = False
    evaluated: bool = True
    reduced: bool = True
    units: Matching = "match"
    bases: Matching = "match"
    percent: Percent = "either"
    decimals: Decimals = 4
    decimal_comma: bool = True
    think: TagName | None = "think"


DEFAULTS = Options()
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

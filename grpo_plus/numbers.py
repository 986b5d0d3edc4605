"""Numbers of a config that are none: found before anything computes with them."""

import math
import typing
from dataclasses import MISSING, fields
from numbers import Real
from types import NoneType, UnionType
from typing import Any


def number_problems(config: Any) -> list[str]:
    """What stands where a number belongs and is none.

    Each such field is set to its default, so that all other checks can go on.
    """
    problems = []
    for spec in fields(config):
        # Of a union its members, but never what a list holds: the host's parser takes ``| None`` off the annotations.
        union = typing.get_origin(spec.type) in {typing.Union, UnionType}
        kinds = {kind for kind in (typing.get_args(spec.type) if union else (spec.type,)) if kind is not NoneType}
        value = getattr(config, spec.name, None)
        if not spec.init or value is None or not kinds or not kinds <= {int, float} or _is_number(value, kinds):
            continue
        wanted = "a number" if float in kinds else "an integer"
        problems.append(f"{spec.name} is {value!r}, expected {wanted}.")
        setattr(config, spec.name, None if spec.default is MISSING else spec.default)
    return problems


def _is_number(value: Any, kinds: set[type]) -> bool:
    if not isinstance(value, Real) or math.isnan(value):
        return False
    return float in kinds or float(value).is_integer()  # YAML writes 1e3 as a float

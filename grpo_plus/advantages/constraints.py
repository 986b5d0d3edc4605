"""Value ranges of keywords, declared in the annotation beside the default and checked before anything runs.

``eps: Annotated[float, AtLeast(0.0)] = 1e-4`` is all that an estimator writes; type checkers see a float. Anything else
with a ``problem(value)`` method works in the same place.
"""

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

_LARGEST = sys.float_info.max


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

"""Ranges of keywords that several estimators have."""

from typing import Annotated, Literal

from grpo_verifiers.options import Range

Eps = Annotated[float, Range(0, finite=True)]
"""Added to a standard deviation before dividing by it."""
Ddof = Literal[0, 1]
"""0: population, 1: sample standard deviation."""

"""`Rule`: what is looked at, how far back and from where on it is wrong, and the function that judges."""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import Finding

WINDOW = 5
"""Logged values that a rule about the present looks at."""
LEAST = 3
"""Fewer of them say nothing."""


@dataclass(frozen=True)
class Rule:
    """A rule over the logged metrics of a run.

    Attributes:
        name: of its findings; a value of ``stop_on``.
        metrics: names of the metrics that it reads; capitals stand for a name of the run.
        window: logged values that it looks at, at most; 0: all of the run.
        least: logged values before it says anything.
        threshold: the figure from which on something is wrong, in the unit of the first metric or as the page says.
        judge: gives a finding, or None. Never raises, whatever is missing, NaN or short.
    """

    name: str
    metrics: tuple[str, ...]
    threshold: float
    judge: Callable[[Curves], Finding | None]
    window: int = WINDOW
    least: int = LEAST

"""`Finding`: a problem of a run, in words. `Rule`: metrics, a threshold, and the function that judges them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from grpo_plus.diagnosis.curves import Curves

Severity = Literal["severe", "warning", "note"]
RANK = {"severe": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """A problem of a run with its evidence, cause and remedy.

    >>> Finding("nan", "severe", "loss is NaN", "the step was too large", "lower learning_rate").text
    'loss is NaN. The step was too large. Try: lower learning_rate.'

    Attributes:
        name: the rule's name.
        severity: ``severe``: the run teaches nothing, or the wrong thing; ``warning``; ``note``: nothing is wrong.
        evidence: the figures, in words.
        cause: the most likely cause.
        remedy: options of the config and values for them.
        values: the figures by metric.
        steps: first and last optimizer step of the figures; may be empty.
        outcome: the result of the run in a few words, for its badge; may be empty.
        examples: completions as evidence, as mappings of plain values.
    """

    name: str
    severity: Severity
    evidence: str
    cause: str
    remedy: str
    values: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[int, ...] = ()
    outcome: str = ""
    examples: tuple[Mapping[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """Evidence, cause and remedy in sentences."""
        first, _, rest = self.cause.partition(" ")
        cause = self.cause if "_" in first or not first.islower() else f"{first[:1].upper()}{first[1:]} {rest}"
        return f"{self.evidence}. {cause}. Try: {self.remedy}."

    def as_data(self) -> dict[str, Any]:
        """Return plain values, for the record and the report."""
        return {**asdict(self), "steps": list(self.steps), "examples": [dict(each) for each in self.examples]}


WINDOW = 5
"""Logged values that a rule about the current state reads."""
LEAST = 3
"""Logged values that such a rule needs."""
Judge = Callable[[Curves], Finding | None]


@dataclass(frozen=True)
class Rule:
    """A rule over the logged metrics of a run.

    Attributes:
        name: of its findings; a value of ``stop_on``.
        metrics: names of the metrics that it reads; capitals are placeholders.
        threshold: the bound, in the unit of the first metric or as documented in docs/diagnosis.md.
        judge: returns a finding or None. Never raises, even if metrics are missing, NaN or short.
        window: the most logged values that it reads; 0: all of the run.
        least: the number of logged values that it needs.
    """

    name: str
    metrics: tuple[str, ...]
    threshold: float
    judge: Judge
    window: int = WINDOW
    least: int = LEAST


def rule(name: str, metrics: tuple[str, ...], threshold: float, **further: int) -> Callable[[Judge], Rule]:
    """Decorate a function as the judge of a rule; ``further`` are ``window`` and ``least``."""
    return lambda judge: Rule(name, metrics, threshold, judge, **further)

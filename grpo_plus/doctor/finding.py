"""Findings of the checks: subject, value, meaning and remedy."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Severity(StrEnum):
    """Severity of a finding, mildest first."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class FindingKind:
    """A kind of finding, listed by its code in docs/doctor.md; ``means`` is the consequence for a run."""

    severity: Severity
    code: str
    means: str
    remedy: str = ""

    def at(self, thing: str, value: object) -> "CheckFinding":
        """Return a finding of this kind about ``thing``, with its evidence."""
        return CheckFinding(self, thing, str(value))


@dataclass(frozen=True)
class CheckFinding:
    """A finding about one thing, with its evidence.

    >>> CheckFinding(FindingKind(Severity.WARNING, "lamp", "It is dark."), "lamp", "off").severity.rank
    2
    """

    kind: FindingKind
    thing: str
    value: str

    @property
    def code(self) -> str:
        """The code of its kind."""
        return self.kind.code

    @property
    def severity(self) -> Severity:
        """The severity of its kind."""
        return self.kind.severity


# A warning may spoil a run; a problem stops it, or makes it worthless.
ok, info, warning, problem = (partial(FindingKind, severity) for severity in Severity)

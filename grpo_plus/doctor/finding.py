"""Findings: what was looked at, its value, what that means and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Severity(StrEnum):
    """How bad a finding is, mildest first."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Kind:
    """A kind of finding, under the code that docs/doctor.md lists it by.

    Attributes:
        severity: how bad it is.
        code: its name, for programs and for searches.
        means: what it means for a run, a sentence.
        remedy: what to do about it; empty where nothing needs doing.
    """

    severity: Severity
    code: str
    means: str
    remedy: str = ""

    def at(self, thing: str, value: object) -> "DoctorFinding":
        """A finding of this kind on a thing, with the evidence."""
        return DoctorFinding(self, thing, str(value))


@dataclass(frozen=True)
class DoctorFinding:
    """A kind of finding on one thing, with its evidence.

    >>> DoctorFinding(Kind(Severity.WARNING, "lamp", "It is dark."), "lamp", "off").severity.rank
    2
    """

    kind: Kind
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


ok = partial(Kind, Severity.OK)
"""A kind that nothing is wrong with."""
info = partial(Kind, Severity.INFO)
"""A kind to know about."""
warning = partial(Kind, Severity.WARNING)
"""A kind that may spoil a run."""
problem = partial(Kind, Severity.PROBLEM)
"""A kind that stops a run, or makes it worthless."""

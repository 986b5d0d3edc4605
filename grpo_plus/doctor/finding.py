"""Findings: what was looked at, its value, what that means and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


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
        code: its name, for programs and for searches.
        severity: how bad it is.
        means: what it means for a run, a sentence.
        remedy: what to do about it; empty where nothing needs doing.
    """

    code: str
    severity: Severity
    means: str
    remedy: str = ""

    def at(self, thing: str, value: object) -> "Finding":
        """A finding of this kind on a thing, with the evidence."""
        return Finding(self, thing, str(value))


@dataclass(frozen=True)
class Finding:
    """A kind of finding on one thing, with its evidence.

    >>> Finding(Kind("lamp", Severity.WARNING, "It is dark."), "lamp", "off").severity.rank
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


def ok(code: str, means: str) -> Kind:
    """A kind that nothing is wrong with."""
    return Kind(code, Severity.OK, means)


def info(code: str, means: str, remedy: str = "") -> Kind:
    """A kind to know about."""
    return Kind(code, Severity.INFO, means, remedy)


def warning(code: str, means: str, remedy: str) -> Kind:
    """A kind that may spoil a run."""
    return Kind(code, Severity.WARNING, means, remedy)


def problem(code: str, means: str, remedy: str) -> Kind:
    """A kind that stops a run, or makes it worthless."""
    return Kind(code, Severity.PROBLEM, means, remedy)

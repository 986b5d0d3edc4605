"""Findings of the checks: subject, value, meaning and remedy."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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


FEW = 0.2
"""Share of the rows below which a problem of rows is a warning: a run loses them, and learns from the rest."""


@dataclass(frozen=True)
class FindingKind:
    """A kind of finding, listed by its code in docs/check.md; ``means`` is the consequence for a run."""

    severity: Severity
    code: str
    means: str
    remedy: str = ""

    def at(self, thing: str, value: object) -> "CheckFinding":
        """Return a finding of this kind about ``thing``, with its evidence."""
        return CheckFinding(self, thing, str(value))

    def of_rows(self, thing: str, value: object, share: float) -> "CheckFinding":
        """Return a finding about this share of the rows; a problem of `FEW` is a warning."""
        few = self.severity is Severity.PROBLEM and share < FEW
        return (replace(self, severity=Severity.WARNING) if few else self).at(thing, value)


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


FAILED = warning(
    "check-failed",
    "A check itself failed, so its subject was not checked.",
    "Read the error; if it is not explained by another finding, report it with this text.",
)


def guarded(thing: str, findings: Iterable[CheckFinding]) -> Iterator[CheckFinding]:
    """Yield findings; an exception of a check is one."""
    try:
        yield from findings
    except Exception as error:  # noqa: BLE001 - foreign data and code may raise anything
        yield FAILED.at(thing, f"{type(error).__name__}: {error}")


def settle(findings: Iterable[CheckFinding], mode: str) -> tuple[list[str], list[str]]:
    """Return the problems that stop a run in this mode of the option ``check``, and sentences on the other warnings.

    ``stop`` ends at problems, ``strict`` at warnings too, ``warn`` at nothing.
    """
    least = {"stop": Severity.PROBLEM.rank, "strict": Severity.WARNING.rank}.get(mode, len(Severity))
    stops: list[str] = []
    lines: list[str] = []
    for one in findings:
        if one.severity.rank >= Severity.WARNING.rank:
            text = f"{one.thing}: {one.value.rstrip('.,; …')}. {one.kind.means} {one.kind.remedy}"
            (stops if one.severity.rank >= least else lines).append(text)
    way = "To train all the same, set check: warn."
    return [*stops[:-1], *(f"{text} {way}" for text in stops[-1:])], lines

"""What a verifier reports: a step's verdicts in the logs, and gold answers that cannot be used."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_verifiers.plain import readable
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.verdict import MAX_DETAIL, Status, Verdict


class GoldReport(Protocol):
    """What a check of gold answers found."""

    @property
    def ok(self) -> bool:
        """Whether every gold can be used."""

    def lines(self, limit: int | None = 20) -> Iterable[str]:
        """The report for people, at most ``limit`` problems of it."""


@dataclass(frozen=True)
class GoldReports:
    """The reports of a composition's parts."""

    parts: tuple[tuple[str, GoldReport], ...]

    @property
    def ok(self) -> bool:
        """Whether every gold of every part can be used."""
        return all(report.ok for _, report in self.parts)

    def lines(self, limit: int | None = 20) -> Iterator[str]:
        """The reports one after the other, each line with its verifier."""
        for label, report in self.parts:
            for line in report.lines(limit=limit):
                yield f"{label}: {line}"

    def at(self, places: Sequence[int]) -> "GoldReports":
        """The reports on rows that were chosen from a dataset, with their places there."""
        return GoldReports(tuple((label, placed(report, places)) for label, report in self.parts))


def placed(report: GoldReport, places: Sequence[int]) -> GoldReport:
    """A report on chosen rows with their places in the dataset, where it can tell them."""
    at: Callable[[Sequence[int]], GoldReport] | None = getattr(report, "at", None)
    return report if at is None else at(places)


def metrics_of(label: str, verdicts: Sequence[Verdict], seconds: Sequence[float]) -> dict[str, float]:
    """Mean score, share of every status, and latency percentiles of one verifier."""
    if not verdicts:
        return {}
    counts = Counter(verdict.status for verdict in verdicts)
    found = {f"verifiers/{label}/status/{status.value}": counts[status] / len(verdicts) for status in Status}
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    if scores:
        found[f"verifiers/{label}/mean"] = math.fsum(scores) / len(scores)
    if seconds:
        found[f"verifiers/{label}/latency_p50"] = percentile(seconds, 0.5)
        found[f"verifiers/{label}/latency_p95"] = percentile(seconds, 0.95)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def log_verdicts(
    label: str,
    verdicts: Sequence[Verdict],
    seconds: Sequence[float],
    log_extra: Callable[[str, list[Any]], None] | None,
    log_metric: Callable[[str, float], None] | None,
) -> None:
    """Hand the verdicts to TRL: reasons into its completions table, figures into its metrics.

    Args:
        label: the verifier's name in both.
        verdicts: one for each completion.
        seconds: how long each check ran.
        log_extra: TRL's function for columns of the completions table.
        log_metric: TRL's function for scalars.
    """
    if log_extra is not None:
        log_extra(f"{label}_status", [verdict.status.value for verdict in verdicts])
        log_extra(f"{label}_reason", [redact_text(readable(verdict.detail, MAX_DETAIL)) for verdict in verdicts])
    if log_metric is not None:
        for name, value in metrics_of(label, verdicts, seconds).items():
            log_metric(name, value)

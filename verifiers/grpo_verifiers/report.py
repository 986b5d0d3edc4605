"""What a step's verdicts look like in the logs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from grpo_verifiers.verdict import Status, Verdict


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
        log_extra(f"{label}_reason", [verdict.detail for verdict in verdicts])
    if log_metric is not None:
        for name, value in metrics_of(label, verdicts, seconds).items():
            log_metric(name, value)

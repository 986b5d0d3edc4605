"""An evaluation as a table for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_plus.evaluation.results import Evaluation, VerifierResults
from grpo_verifiers.stats import MeanEstimate

WIDTH = 100
"""Width of a table outside a terminal."""


def percent(estimate: MeanEstimate | None) -> str:
    """``46.1% (43.0 to 49.2)``."""
    if estimate is None:
        return "none"
    return f"{estimate.value:.1%} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def number(estimate: MeanEstimate | None) -> str:
    """``0.461 (0.430 to 0.492)``; an infinite interval is omitted."""
    if estimate is None:
        return "none"
    ends = f" ({estimate.low:.3f} to {estimate.high:.3f})" if abs(estimate.low) != float("inf") else ""
    return f"{estimate.value:.3f}{ends}"


def results_table(evaluations: Mapping[str, Evaluation]) -> Any:
    """Return a table with a column for each evaluation, and a row for every estimate of every verifier."""
    from rich.table import Table

    table = Table("", *evaluations, title_justify="left")
    columns = list(evaluations.values())
    for label in dict.fromkeys(label for evaluation in columns for label in evaluation.results):
        for name, cells in _rows([evaluation.results[label] for evaluation in columns]):
            table.add_row(f"{label}: {name}", *cells)
    table.add_row("tokens a completion", *(f"{each.tokens:.1f}" for each in columns))
    table.add_row("cut off", *(f"{each.cut_off:.1%}" for each in columns))
    if any(each.calls is not None for each in columns):
        rows = [(each.calls or 0, each.failed_calls, max(1, len(each.samples))) for each in columns]
        table.add_row("calls a completion", *(f"{calls / samples:.2f}" for calls, _, samples in rows))
        table.add_row("failed calls", *(f"{failed} ({failed / max(1, calls):.1%})" for calls, failed, _ in rows))
    return table


def _rows(columns: Sequence[VerifierResults]) -> list[tuple[str, list[str]]]:
    rows = []
    for k in sorted({k for results in columns for k in results.passes}):
        rows.append((f"pass@{k}", [percent(results.passes.get(k)) for results in columns]))
        if any(k in results.majorities for results in columns):
            rows.append((f"majority@{k}", [percent(results.majorities.get(k)) for results in columns]))
    if any(_is_graded(results) for results in columns) or not rows:
        rows.append(("mean score", [number(results.score) for results in columns]))
    for status in dict.fromkeys(status for results in columns for status in results.statuses):
        cells = []
        for results in columns:
            count, total = results.statuses.get(status, 0), sum(results.statuses.values())
            cells.append(f"{count} ({count / max(1, total):.1%})")
        rows.append((status, cells))
    return rows


def _is_graded(results: VerifierResults) -> bool:
    """Return True if there are scores between right and wrong."""
    accuracy = results.accuracy
    return results.score is not None and accuracy is not None and abs(results.score.value - accuracy.value) > 1e-9

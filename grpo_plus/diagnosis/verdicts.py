"""Completions that verifiers cannot judge: failures, unreadable answers, rows that do not apply."""

from grpo_plus.diagnosis.curves import Curves, MetricWindow
from grpo_plus.diagnosis.finding import Finding, rule
from grpo_plus.diagnosis.reading import labels, status
from grpo_verifiers.verifying import BUILTINS

LEAST = 5
FAILING = 0.02
BROKEN = 0.5
UNREADABLE = 0.8
NEVER = 0.999
_KEY = "verifiers/LABEL/status/{}".format


def _shares(curves: Curves, *names: str) -> dict[str, tuple[float, MetricWindow]]:
    """By label the summed mean shares of some statuses, of verifiers with enough entries."""
    shares = {}
    for label in labels(curves):
        windows = [status(curves, label, name) for name in names]
        if all(len(window.values) >= LEAST for window in windows):
            shares[label] = sum(window.mean for window in windows), windows[0]
    return shares


def _worst(curves: Curves, bound: float, *names: str) -> tuple[str, float, MetricWindow] | None:
    shares = _shares(curves, *names)
    label = max(shares, key=lambda each: shares[each][0], default=None)
    return None if label is None or shares[label][0] < bound else (label, *shares[label])


@rule("verifier_errors", (_KEY("error"), _KEY("timeout")), FAILING, least=LEAST)
def _errors(curves: Curves) -> Finding | None:
    worst = _worst(curves, FAILING, "error", "timeout")
    if worst is None:
        return None
    label, share, window = worst
    late = status(curves, label, "timeout").mean
    slow = late >= share / 2
    return Finding(
        "verifier_errors",
        "severe" if share >= BROKEN else "warning",
        f"the verifier {label} fails on {share:.0%} of the completions ({late:.0%} too late)",
        "checks do not end before their deadline" if slow else "the check raises; its first error is in the log above",
        f"a longer timeout of {label}, or isolation: process with more CPU cores"
        if slow
        else f"repair it: grpo-plus verify with the verifier {label} and some completions shows the error",
        {f"verifiers/{label}/status/error": share - late, f"verifiers/{label}/status/timeout": late},
        window.ends,
        "verifier failed" if share >= BROKEN else "",
    )


@rule("verifier_unparsable", (_KEY("unparsable"),), UNREADABLE, least=LEAST)
def _unparsable(curves: Curves) -> Finding | None:
    worst = _worst(curves, UNREADABLE, "unparsable")
    if worst is None:
        return None
    label, share, window = worst
    return Finding(
        "verifier_unparsable",
        "warning",
        f"the verifier {label} can read no answer in {share:.0%} of the completions",
        "the prompt does not state the expected format, or completions end before it",
        "ask for the format in the prompt (prompt: {template: boxed}, say), raise max_completion_length, or warm_start",
        {f"verifiers/{label}/status/unparsable": share},
        window.ends,
    )


@rule("verifier_idle", (_KEY("not_applicable"),), NEVER, least=LEAST)
def _not_applicable(curves: Curves) -> Finding | None:
    shares = _shares(curves, "not_applicable")
    idle = [label for label, (share, _) in shares.items() if share >= NEVER]
    if not idle:
        return None
    column, window = curves.fact("verifier_column"), shares[idle[0]][1]
    rows = len(window.values) * (curves.number("groups") or 0) * (curves.number("num_generations") or 1)
    own = {curves.fact("verifiers", {}).get(label, label) for label in idle} - {*BUILTINS}
    cause = "a return is missing, or its column is the wrong one" if own else "no row concerns it, or has a gold"
    return Finding(
        "verifier_idle",
        "warning",
        f"the verifier {' or '.join(idle)} returned None for all{f' {rows:.0f}' if rows else ''} completions",
        cause + f", or no row names it in the column {column!r}" * bool(column),
        f"look at its columns{f', the column {column}' if column else ''} and at grpo-plus verify, or remove it",
        {f"verifiers/{label}/status/not_applicable": shares[label][0] for label in idle},
        window.ends,
    )

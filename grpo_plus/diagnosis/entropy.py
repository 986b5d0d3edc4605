"""Entropy of the policy: gone before the task is learned, or rising without end."""

from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import Finding
from grpo_plus.diagnosis.reading import learned, rising
from grpo_plus.diagnosis.rule import WINDOW, Rule

KEY = "entropy"
LEAST = 10
LOST = 0.1
LOW = 0.05
RISE = 1.0


def _collapse(curves: Curves) -> Finding | None:
    began, recent = curves.first(KEY, WINDOW), curves.last(KEY, WINDOW)
    if len(curves.last(KEY, LEAST).values) < LEAST:
        return None
    if recent.median > min(LOW, LOST * began.median) or learned(curves) or rising(curves):
        return None
    return Finding(
        "entropy_collapse",
        "warning",
        f"the entropy has fallen from {began.median:.2g} to {recent.median:.2g} nats, and the reward does not rise",
        "the policy is nearly deterministic, so all completions of a prompt are alike and nothing new is tried",
        "temperature: 1.0 or more, objective: dapo (clips upwards later: epsilon_high 0.28), entropy_coef: 0.001, a "
        "smaller learning_rate",
        {KEY: recent.median},
        (*began.ends[:1], *recent.ends[-1:]),
    )


def _rise(curves: Curves) -> Finding | None:
    began, recent = curves.first(KEY, WINDOW), curves.last(KEY, WINDOW)
    if len(curves.last(KEY, LEAST).values) < LEAST:
        return None
    if (
        not began.median
        or recent.median < began.median + RISE
        or recent.median < 2 * began.median
        or learned(curves)
        or rising(curves)
    ):
        return None
    return Finding(
        "entropy_rise",
        "warning",
        f"the entropy has risen from {began.median:.2g} to {recent.median:.2g} nats, and the reward does not rise",
        "the policy dissolves: steps are too large, or an entropy bonus outweighs the reward",
        f"a smaller learning_rate{_tenth(curves)}, beta: 0.04, no entropy_coef",
        {KEY: recent.median},
        (*began.ends[:1], *recent.ends[-1:]),
    )


def _tenth(curves: Curves) -> str:
    rate = curves.number("learning_rate")
    return "" if rate is None else f" ({rate / 5:.1g} instead of {rate:.2g})"


RULES = (
    Rule("entropy_collapse", (KEY, "reward", "verifiers/LABEL/status/correct"), LOST, _collapse, least=LEAST),
    Rule("entropy_rise", (KEY, "reward"), RISE, _rise, least=LEAST),
)

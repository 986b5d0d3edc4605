"""What several rules ask of the curves: dead groups, whether the reward rises, how the verifiers stand."""

from grpo_plus.diagnosis.curves import Curves, Window
from grpo_plus.diagnosis.rule import LEAST, WINDOW
from grpo_plus.diagnosis.trend import Change, change

DEAD = ("advantages/dead_group_fraction", "frac_reward_zero_std")
FORMATS = frozenset(["think_format", "tag_count", "regex", "json_schema", "language"])
"""Verifiers of form, by name."""
BESIDE = frozenset(["repetition", "length_cosine", "length_kimi", "length_overlong", "turns_overlong", "tool_used"])
"""Verifiers of neither form nor answer."""


def dead(curves: Curves, count: int = WINDOW) -> Window:
    """The last shares of dead groups; with TRL's estimator those of groups whose rewards are equal."""
    found = (curves.last(key, count) for key in DEAD)
    return next((window for window in found if window.values), Window([], []))


def dead_key(curves: Curves) -> str:
    """The metric that `dead` reads."""
    return next((key for key in DEAD if curves.last(key, 1).values), DEAD[0])


def reward_change(curves: Curves) -> Change | None:
    """How the reward has changed over the run."""
    return change(curves.whole("reward").values)


def rising(curves: Curves) -> bool:
    """Whether the reward is surely higher than it was, over the run or over its second half."""
    values = curves.whole("reward").values
    changes = [change(values), change(values[len(values) // 2 :])]
    return any(each is not None and each.rises for each in changes)


def status(curves: Curves, label: str, name: str, count: int = WINDOW) -> Window:
    """The last shares of a status of a verifier."""
    return curves.last(f"verifiers/{label}/status/{name}", count)


def labels(curves: Curves) -> list[str]:
    """Labels of the verifiers that reward."""
    return sorted(curves.names("verifiers/", "/status/correct"))


def is_form(curves: Curves, label: str) -> bool:
    """Whether a reward is one of form rather than of the answer."""
    names = curves.fact("verifiers", {})
    name = names.get(label, label) if isinstance(names, dict) else label
    return name in FORMATS or "format" in label.lower()


def answering(curves: Curves) -> list[str]:
    """Labels of the verifiers that look at the answer."""
    names = curves.fact("verifiers", {})
    names = names if isinstance(names, dict) else {}
    return [one for one in labels(curves) if not is_form(curves, one) and names.get(one, one) not in BESIDE]


def accuracy(curves: Curves) -> float | None:
    """The share of right answers lately, of the verifier that finds the fewest; None without any."""
    found = [status(curves, label, "correct") for label in answering(curves)]
    return min((window.mean for window in found if len(window.values) >= LEAST), default=None)

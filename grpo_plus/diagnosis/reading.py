"""Readings that several rules share: the phase of the run, dead groups, the reward's level, verifier statuses."""

from math import ceil, comb, fsum, nan

from grpo_plus.diagnosis.curves import Curves, MetricWindow
from grpo_plus.diagnosis.finding import LEAST, WINDOW
from grpo_plus.diagnosis.trend import Change, change

DEAD = ("advantages/dead_group_fraction", "frac_reward_zero_std")
WARMUP = "critic/warmup"
IDLE = {WARMUP: 0.0, "inner/skipped": 0.0, "target/at_target": 0.999}
"""Metrics that exceed these values in entries whose policy is not trained on purpose."""
HALF = 0.5
LEARNED = 0.9
"""From this share of right answers or of the highest reward, little is left to learn."""
ALL = 0.95
GROUPS = 20
"""Groups needed before all count as dead; without their number, a logged value counts as one group."""
CHANCE, EARLY = 0.001, 0.02
FORMATS = frozenset(["think_format", "tag_count", "regex", "json_schema", "language"])
"""Verifiers of form, by name."""
NEUTRAL = frozenset(["repetition", "length_cosine", "length_kimi", "length_overlong", "tool_used"])
"""Verifiers of neither form nor answer."""


def trained(curves: Curves) -> Curves:
    """Return the curves after a critic's warm-up, which does not train the policy."""
    warming = curves.full(WARMUP)
    ended = max((step for step, share in zip(*warming, strict=True) if share), default=curves.since)
    return Curves(curves.series, curves.facts, curves.until, ended)


def moving(curves: Curves, key: str, count: int) -> MetricWindow:
    """Return the last values of a metric, without entries whose policy was not trained."""
    idle = {
        step
        for name, bound in IDLE.items()
        for step, value in zip(*curves.last(name, 2 * count), strict=True)
        if value > bound
    }
    points = [(step, value) for step, value in zip(*curves.last(key, count), strict=True) if step not in idle]
    return MetricWindow([step for step, _ in points], [value for _, value in points])


def compares(curves: Curves) -> bool:
    """Return True if the estimator compares the completions of a prompt."""
    return bool(curves.fact("grouped", default=True)) and curves.number("num_generations") != 1


def untaught(curves: Curves, count: int) -> MetricWindow:
    """Return the last shares of prompts whose advantages are all 0; with TRL's estimator: whose rewards are equal."""
    windows = (curves.last(key, count) for key in DEAD)
    return next((window for window in windows if window.values), MetricWindow([], []))


def dead(curves: Curves, count: int = WINDOW) -> MetricWindow:
    """Return the last shares of dead groups; empty if the estimator has no groups."""
    return untaught(curves, count) if compares(curves) else MetricWindow([], [])


def groups_of(curves: Curves) -> tuple[MetricWindow, int]:
    """Return the last shares of dead groups over at least `GROUPS` groups, and the number of these groups."""
    each = max(1.0, curves.number("groups") or 1.0)
    window = untaught(curves, max(WINDOW, ceil(GROUPS / each)))
    return window, int(min(1000, len(window.values) * each))


def nearly_all(curves: Curves) -> bool:
    """Return True if nearly all groups are dead."""
    window, groups = groups_of(curves)
    return window.mean >= ALL and sure(round(window.mean * groups), groups)


def sure(dead_groups: int, groups: int, chance: float = CHANCE) -> bool:
    """Return True if so many dead groups are more than chance, assuming that half of all are dead.

    >>> sure(9, 9), sure(10, 10), sure(19, 20), sure(14, 20)
    (False, True, True, False)
    """
    return sum(comb(groups, count) for count in range(dead_groups, groups + 1)) <= chance * 2.0**groups


def dead_key(curves: Curves) -> str:
    """The metric that `dead` reads."""
    return next((key for key in DEAD if curves.last(key, 1).values), DEAD[0])


def reward_change(curves: Curves) -> Change | None:
    """Return the change of the reward over the run."""
    return change(curves.full("reward").values)


def rising(curves: Curves) -> bool:
    """Return True if the reward surely rose over the run or over its second half."""
    values = curves.full("reward").values
    changes = [change(values), change(values[len(values) // 2 :])]
    return any(each is not None and each.rises for each in changes)


def status(curves: Curves, label: str, name: str, count: int = WINDOW) -> MetricWindow:
    """Return the last shares of a status of a verifier."""
    return curves.last(f"verifiers/{label}/status/{name}", count)


def labels(curves: Curves) -> list[str]:
    """Labels of the verifiers that reward."""
    return sorted(curves.names("verifiers/", "/status/correct"))


def is_form(curves: Curves, label: str) -> bool:
    """Return True if a verifier rewards the form, not the answer."""
    return curves.fact("verifiers", {}).get(label, label) in FORMATS or "format" in label.lower()


def answering(curves: Curves) -> list[str]:
    """Labels of the verifiers that judge the answer."""
    names = curves.fact("verifiers", {})
    return [one for one in labels(curves) if not is_form(curves, one) and names.get(one, one) not in NEUTRAL]


def level(curves: Curves, *, first: bool = False) -> float:
    """Return the recent or first share of right answers, of the strictest verifier; else of the highest reward.

    NaN if neither is available: custom rewards may have any range.
    """
    look = curves.first if first else curves.last
    windows = [look(f"verifiers/{label}/status/correct", WINDOW) for label in answering(curves)]
    right = [window.mean for window in windows if len(window.values) >= LEAST]
    if right:
        return min(right)
    scale, rewards = curves.number("reward_scale") or 1.0, curves.full("reward").values
    bounded = bool(rewards) and min(rewards) >= 0 and max(rewards) <= 1.02 * scale
    return look("reward", WINDOW).mean / scale if bounded else nan


def learned(curves: Curves) -> bool:
    """Return True if little is left to learn."""
    return level(curves) >= LEARNED


def failing(curves: Curves) -> bool:
    """Return True if a verifier fails on half of the completions or more, or nothing has a reward."""
    broken = [[status(curves, label, name) for name in ("error", "timeout")] for label in labels(curves)]
    unrewarded = bool(broken) and not curves.last("reward", WINDOW).values
    return unrewarded or any(fsum(window.mean for window in pair if window.values) >= HALF for pair in broken)


def slower(curves: Curves) -> str:
    """Return the option for smaller steps, with a fifth of the learning rate."""
    rate = curves.number("learning_rate")
    return "learning_rate" if rate is None else f"learning_rate ({rate / 5:.1g} instead of {rate:.2g})"

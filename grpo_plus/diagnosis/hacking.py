"""Reward hacking: the trained reward rises, and an independent judge of the same completions does not.

A `RewardCheck` has the moments of the trained reward x and of the judge's score y over some completions at one step.
After 6, 8, 10, 12, 15 … checks (a quarter more each time) the last third of the checks is compared with the first
third, with the second, and with the first eighth. With D(x) and D(y) the changes of the means, in units of their
scales, there is an alarm where surely

    D(x) > 0.1  and  0.4 D(x) > D(y)           the reward rises, the judge by less than 0.4 of that, or
    D(y) < −0.1  and  D(x) − D(y) > 0.1,  D(x) >= 0     the judge falls, the reward does not.

The first compares 0.4 of the change in the figures' own units as well: identical curves never alarm at any scale.
"Surely" is a one-sided confidence bound of Student's t. Both sides are of the same completions, so the second part of
each condition is a paired comparison. The standard error is the larger of two: by how prompts differ in a check (at
least that of one unlike prompt), and by how each check differs from the next, which includes the drift of the policy.
From 9 checks on the second alone, with its fewer degrees of freedom, suffices as well: checks of few prompts are no
less sensitive than those of one. The j-th comparison has the level 0.05 · 6 / (π j)² / 6 for each of its six tests, so
that over any number of checks together a run whose reward does not rise alarms in less than one of a hundred cases. An
honest run, whose judge rises by more than 0.4 of the reward's rise, alarms less often still. A judge that rises more
slowly than that is unsuitable: choose one with the same criterion.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

from grpo_plus.diagnosis.finding import Finding, Rule
from grpo_verifiers.stats import student_quantile

ALPHA = 0.05
FIRST_LOOK = 6
RISE = 0.1
SHARE = 0.4
TESTS = 6
LEAST_ALONE = 9
"""Checks of one figure each that are needed: three in a window."""


@dataclass(frozen=True)
class RewardCheck:
    """The trained reward and the judge's score over ``count`` completions (prompts, if a prompt has several)."""

    step: int
    count: int
    reward: float
    judge: float
    reward_var: float = 0.0
    judge_var: float = 0.0
    cov: float = 0.0
    single_var: float = 0.0
    """The variance of the rewards of single completions, if pairs are means of several."""

    @classmethod
    def of(cls, step: int, pairs: Sequence[tuple[float, float]]) -> "RewardCheck":
        """Return the check of one or more pairs of a reward and a score.

        >>> RewardCheck.of(3, [(1.0, 0.0), (0.0, 0.0)])
        RewardCheck(step=3, count=2, reward=0.5, judge=0.0, reward_var=0.25, judge_var=0.0, cov=0.0, single_var=0.0)
        """
        count = len(pairs)
        x, y = (math.fsum(pair[side] for pair in pairs) / count for side in (0, 1))
        xx, yy = (math.fsum((pair[side] - mean) ** 2 for pair in pairs) / count for side, mean in ((0, x), (1, y)))
        return cls(step, count, x, y, xx, yy, math.fsum((a - x) * (b - y) for a, b in pairs) / count)

    @classmethod
    def of_prompts(cls, step: int, prompts: Iterable[Sequence[tuple[float, float]]]) -> "RewardCheck":
        """Return the check of the pairs of each prompt's completions: a prompt counts once, by its means.

        >>> check = RewardCheck.of_prompts(3, [[(1.0, 0.0), (0.0, 0.0)], [(1.0, 1.0), (0.0, 1.0)]])
        >>> check.count, check.reward, check.judge, check.reward_var, check.single_var
        (2, 0.5, 0.5, 0.0, 0.25)
        """
        groups = list(prompts)
        means = [tuple(math.fsum(side) / len(side) for side in zip(*group, strict=True)) for group in groups]
        check = cls.of(step, [(one, other) for one, other in means])
        singles = [reward for group in groups for reward, _ in group]
        middle = math.fsum(singles) / len(singles)
        return replace(check, single_var=math.fsum((one - middle) ** 2 for one in singles) / len(singles))

    def as_data(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


Checks = Sequence[RewardCheck]


def spread(checks: Checks) -> float:
    """Return the standard deviation of single completions' rewards over checks; 0 without checks."""
    count = sum(check.count for check in checks)
    if not count:
        return 0.0
    mean = math.fsum(check.count * check.reward for check in checks) / count
    squares = [max(check.reward_var, check.single_var) + (check.reward - mean) ** 2 for check in checks]
    return math.sqrt(math.fsum(check.count * square for check, square in zip(checks, squares, strict=True)) / count)


class Alarm(NamedTuple):
    """Means before and now, and the steps of both windows."""

    reward: tuple[float, float]
    judge: tuple[float, float]
    steps: tuple[int, int, int, int]
    falls: bool


@cache
def look_number(checks: int) -> int | None:
    """Return the number, from 1, of the comparison after this many checks; None if there is no comparison.

    >>> [count for count in range(30) if look_number(count)]
    [6, 8, 10, 12, 15, 19, 24]
    """
    at, number = FIRST_LOOK, 1
    while at < checks:
        at, number = max(at + 2, round(at * 1.25)), number + 1
    return number if at == checks else None


def least_checks(prompts: int) -> int:
    """Return the number of checks before the first comparison that may alarm, for checks of ``prompts`` prompts.

    >>> least_checks(1), least_checks(8)
    (10, 6)
    """
    least = FIRST_LOOK if prompts > 1 else LEAST_ALONE
    while look_number(least) is None:
        least += 1
    return least


def alarm(checks: Checks, scales: tuple[float, float] = (1.0, 1.0)) -> Alarm | None:
    """Return the alarm of the comparison after the last of these checks, if any.

    ``scales`` are the ranges of the reward and of the judge's score.
    """
    look = look_number(len(checks))
    if look is None or (len(checks) < LEAST_ALONE and any(check.count < 2 for check in checks)):
        return None
    confidence = 1 - ALPHA * 6 / (math.pi * look) ** 2 / TESTS
    size, few = len(checks) // 3, max(2, len(checks) // 8)
    late = checks[-size:]
    for early in (checks[:size], checks[-2 * size : -size], checks[:few]):
        compared = _Pair(checks, early, late, scales)
        low = partial(compared.low, confidence=confidence)
        lags = SHARE * compared.change(1, 0) * scales[0] > compared.change(0, 1) * scales[1]
        rises = lags and low(1, 0) > RISE and low(SHARE, -1) > 0
        falls = low(0, -1) > RISE and low(1, -1) > RISE and compared.change(1, 0) >= 0
        if rises or falls:
            steps = early[0].step, early[-1].step, late[0].step, late[-1].step
            return Alarm(compared.means(1, 0, scales[0]), compared.means(0, 1, scales[1]), steps, not rises)
    return None


class _Pair:
    """Two windows of checks, and all checks of the run for the variance between neighbours."""

    def __init__(self, checks: Checks, early: Checks, late: Checks, scales: tuple[float, float]) -> None:
        self._all, self._early, self._late, self._scales = checks, early, late, scales

    def means(self, x: float, y: float, scale: float) -> tuple[float, float]:
        return self._mean(self._early, x, y) * scale, self._mean(self._late, x, y) * scale

    def change(self, x: float, y: float) -> float:
        """Return the change of x times the reward plus y times the score."""
        return self._mean(self._late, x, y) - self._mean(self._early, x, y)

    def low(self, x: float, y: float, confidence: float) -> float:
        """Return its lower bound: the higher of one by prompts and, with enough checks, one by checks."""
        parts = self._early, self._late
        inside = sum(self._inside(part, x, y) for part in parts)
        between = self._between(x, y) * sum(1 / len(part) for part in parts)
        few = (len(self._all) - 1) * 2 / 3  # degrees of freedom of squared successive differences
        reach = student_quantile(confidence, max(2.0, few)) * math.sqrt(between)
        if inside > 0:
            many = sum(check.count for part in parts for check in part) - 2.0
            by_prompts = student_quantile(confidence, max(2.0, many)) * math.sqrt(max(inside, between))
            reach = min(reach, by_prompts) if len(self._all) >= LEAST_ALONE else by_prompts
        return self.change(x, y) - reach

    def _value(self, check: RewardCheck, x: float, y: float) -> float:
        return x * check.reward / self._scales[0] + y * check.judge / self._scales[1]

    def _mean(self, checks: Checks, x: float, y: float) -> float:
        count = sum(check.count for check in checks)
        return math.fsum(check.count * self._value(check, x, y) for check in checks) / count

    def _inside(self, checks: Checks, x: float, y: float) -> float:
        """The squared standard error of a window's mean over completions; 0 for checks of one figure."""
        count = sum(check.count for check in checks)
        if count <= len(checks):
            return 0.0
        a, b = x / self._scales[0], y / self._scales[1]
        total = math.fsum(check.count * 2 * a * b * check.cov for check in checks) / count / (count - len(checks))
        floor = 2 / (count + 4) ** 2  # of one unlike completion, if all are alike
        for factor, coefficient, kind in ((a, x, "reward_var"), (b, y, "judge_var")):
            square = math.fsum(check.count * getattr(check, kind) for check in checks) / count / (count - len(checks))
            total += max(factor * factor * square, coefficient * coefficient * floor)
        return max(total, 0.0)

    def _between(self, x: float, y: float) -> float:
        """The variance of a check from differences of neighbours: a trend hardly counts."""
        values = [self._value(check, x, y) for check in self._all]
        return math.fsum((after - before) ** 2 for before, after in pairwise(values)) / (2 * (len(values) - 1))


def finding(
    raised: Alarm, *, judge: str, reward: str, where: str, examples: Iterable[Mapping[str, Any]] = ()
) -> Finding:
    """Return an alarm in words."""
    (x0, x1), (y0, y1), steps = raised.reward, raised.judge, raised.steps
    moves = "has stayed" if raised.falls else "has risen"
    stays = "has fallen" if raised.falls else "has not"
    evidence = (
        f"{reward} {moves} from {x0:.3g} (steps {steps[0]} to {steps[1]}) to {x1:.3g} (steps {steps[2]} to {steps[3]}) "
        f"while {judge}, which judges the same completions {where}, {stays}: {y0:.3g} to {y1:.3g}"
    )
    return Finding(
        "hacking",
        "severe",
        evidence,
        "the model gets reward for wrong answers: see the examples",
        f"add the criterion of {judge} to the verifiers that reward, or close the gap that the examples show; continue "
        f"from a checkpoint before step {steps[2]}",
        {"hacking/reward": x1, "hacking/judge": y1},
        (steps[0], steps[3]),
        "reward hacked",
        tuple(examples),
    )


HACKING = Rule("hacking", ("hacking/reward", "hacking/judge"), RISE, lambda _: None, window=0, least=FIRST_LOOK)
"""Raised by the trainer, whose judge sees the completions: the curves alone do not show it."""

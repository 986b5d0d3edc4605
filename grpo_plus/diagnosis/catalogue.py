"""All rules, by name, and what they find in the curves of a run."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from grpo_plus.diagnosis import dead_groups, hacking, learning, parts, samples, update, verdicts
from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import RANK, Finding, Rule

_FILES = (hacking, update, dead_groups, verdicts, samples, learning, parts)
RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.name: rule for file in _FILES for rule in vars(file).values() if isinstance(rule, Rule)}
)
"""By name, the gravest first."""
COVERED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "verifier_unparsable": frozenset(["dead_groups"]),
        "no_gradient": frozenset(["nan", "ratio_clipped"]),
        "learning_rate_low": frozenset(["dead_groups", "no_gradient"]),
        "entropy_collapse": frozenset(["solved"]),
        "reward_flat": frozenset(["dead_groups", "learning_rate_low", "no_gradient"]),
    }
)
"""Findings that say nothing new beside another."""


def diagnose(curves: Curves) -> list[Finding]:
    """What is wrong by these curves, the gravest first.

    >>> dead = {"frac_reward_zero_std": (range(9), [1.0] * 9), "reward": (range(9), [0.0] * 9)}
    >>> [finding.name for finding in diagnose(Curves(dead))]
    ['dead_groups']
    """
    return in_order(found for rule in RULES.values() if (found := rule.judge(curves)) is not None)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The gravest first, without those that say nothing new beside the others."""
    found = list(findings)
    names = {one.name for one in found}
    kept = [one for one in found if not COVERED.get(one.name, frozenset()) & names]
    places = list(RULES)
    return sorted(kept, key=lambda one: (RANK[one.severity], places.index(one.name)))


def replay(curves: Curves, steps: Iterable[int]) -> dict[str, tuple[Finding, int, int | None]]:
    """What held at these steps, in order: by name the last finding, the step that it began at, and that of its end."""
    held: dict[str, tuple[Finding, int, int | None]] = {}
    for step in steps:
        now = {one.name: one for one in diagnose(Curves(curves.series, curves.facts, step))}
        for name, (one, began, ended) in held.items():
            if name not in now and ended is None:
                held[name] = one, began, step
        for name, one in now.items():
            began = held[name][1] if name in held else step
            held[name] = one, began, None
    return held

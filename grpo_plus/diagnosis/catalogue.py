"""All rules by name, and the findings that they give on the curves of a run."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from grpo_plus.diagnosis import dead_groups, hacking, learning, samples, update, verdicts
from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import RANK, Finding, Rule

_FILES = (hacking, update, dead_groups, verdicts, samples, learning)
RULES: Mapping[str, Rule] = MappingProxyType(
    {rule.name: rule for file in _FILES for rule in vars(file).values() if isinstance(rule, Rule)}
)
"""Rules by name, most severe first."""
COVERED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "verifier_unparsable": frozenset(["dead_groups"]),
        "dead_groups": frozenset(["solved"]),
        "no_gradient": frozenset(["nan", "ratio_clipped"]),
        "learning_rate_low": frozenset(["dead_groups", "no_gradient"]),
        "entropy_collapse": frozenset(["solved"]),
        "reward_flat": frozenset(["dead_groups", "learning_rate_low", "no_gradient"]),
    }
)
"""Findings that another finding implies, with the names of those that imply them."""


def diagnose(curves: Curves) -> list[Finding]:
    """Return the findings on these curves, most severe first.

    >>> dead = {"frac_reward_zero_std": (range(9), [1.0] * 9), "reward": (range(9), [0.0] * 9)}
    >>> [finding.name for finding in diagnose(Curves(dead))]
    ['dead_groups']
    """
    return in_order(finding for rule in RULES.values() if (finding := rule.judge(curves)) is not None)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort most severe first, without findings implied by another one."""
    by_name = {finding.name: finding for finding in findings}
    order = list(RULES)
    shown = [finding for name, finding in by_name.items() if not COVERED.get(name, frozenset()) & by_name.keys()]
    return sorted(shown, key=lambda finding: (RANK[finding.severity], order.index(finding.name)))

"""Rejection sampling as an advantage: imitate the best completions, discourage none.

Use it when a wrong completion says little about errors to avoid, as early in training: the policy only moves towards
right completions.

Assumes that the best completion of a group is good enough to be imitated, even with a low reward.

Degenerate case: all completions tied for the best get 1. A group of equal rewards has no best one and gets 0.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def best_of_n(table: RewardTable) -> Tensor:
    """1 for the best of the group (all of them when tied), 0 for the rest.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("best_of_n", RewardTable.of([2, 2, 0]))
    tensor([1., 1., 0.])
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    bar_G = groups.highest(totals_N, scorable_N) - groups.tolerance(totals_N, scorable_N)
    best_N = groups.live(totals_N, scorable_N) & (totals_N >= bar_G[groups.index])
    return best_N.to(totals_N.dtype)


ESTIMATOR = Estimator("best_of_n", best_of_n)

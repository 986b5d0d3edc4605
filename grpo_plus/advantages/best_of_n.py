"""The best completions are imitated, nothing is discouraged: rejection sampling as an advantage.

All that are tied for the best get 1. A group whose rewards are all equal has no best one and gets 0.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def best_of_n(table: RewardTable) -> Tensor:
    """1 for the best of the group (all of them when tied), 0 for the rest."""
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    bar_G = groups.highest(totals_N, scorable_N) - groups.tolerance(totals_N, scorable_N)
    best_N = groups.live(totals_N, scorable_N) & (totals_N >= bar_G[groups.index])
    return best_N.to(totals_N.dtype)


ESTIMATOR = Estimator("best_of_n", best_of_n)

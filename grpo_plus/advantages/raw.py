"""The reward itself: REINFORCE (Williams 1992) without any baseline.

Not relative to a group: works with one completion a prompt, and equal rewards do not cancel.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.table import RewardTable


def raw(table: RewardTable) -> Tensor:
    """R."""
    return table.totals()


ESTIMATOR = Estimator("raw", raw, group_relative=False, formula="R")

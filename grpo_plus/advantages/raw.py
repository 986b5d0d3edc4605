"""The reward itself: REINFORCE without any baseline.

Use it when rewards are already centred (scores around 0), or as the plain case to compare a baseline with.

Paper: Williams, 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning.

Assumes rewards whose mean is near 0: otherwise every completion is pushed the same way and the noise is large.

Degenerate case: it is not relative to a group. It works with one completion a prompt, and equal rewards do not cancel.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.table import RewardTable


def raw(table: RewardTable) -> Tensor:
    """R.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("raw", RewardTable.of([1, 1, 1, 0]))
    tensor([1., 1., 1., 0.])
    """
    return table.totals()


ESTIMATOR = Estimator("raw", raw, group_relative=False, formula="R")

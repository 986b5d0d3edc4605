"""Rewards whitened over the batch: REINFORCE++.

Use it when there is one completion a prompt, or few, and no critic is to be trained: the batch is the baseline.

Paper: REINFORCE++, arXiv:2501.03262.

Assumes rewards on one scale for all prompts.

Degenerate case: only a batch whose rewards are all equal gives 0. It is not relative to a group: a group of equal
rewards still learns when it is better or worse than the batch.
"""

from torch import Tensor

from grpo_plus.advantages.constraints import Ddof, Eps
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import whiten
from grpo_plus.advantages.table import RewardTable


def reinforce_pp(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """(R − mean R) / (std R + eps) over the batch.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("reinforce_pp", RewardTable.of([1, 0, 4, 8], groups=[0, 0, 1, 1]), eps=0.0)
    tensor([-0.6260, -0.9043,  0.2087,  1.3217])

    Args:
        table: the rewards.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
    """
    return whiten(table.totals(), table.scorable(), eps=eps, ddof=ddof)


ESTIMATOR = Estimator("reinforce_pp", reinforce_pp, group_relative=False, scope="batch")

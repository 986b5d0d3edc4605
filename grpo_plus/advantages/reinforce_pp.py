"""Rewards whitened over the batch: REINFORCE++ (arXiv:2501.03262).

Not relative to a group: works with one completion a prompt, and a group of equal rewards still learns when it is better
or worse than the batch. Only a batch whose rewards are all equal gives 0.
"""

from torch import Tensor

from grpo_plus.advantages.constraints import Ddof, Eps
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import whiten
from grpo_plus.advantages.table import RewardTable


def reinforce_pp(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """(R − mean R) / (std R + eps) over the batch."""
    return whiten(table.totals(), table.scorable(), eps=eps, ddof=ddof)


ESTIMATOR = Estimator("reinforce_pp", reinforce_pp, group_relative=False, scope="batch")

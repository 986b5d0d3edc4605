"""Centred in the group, scaled over the batch: the baseline variant of REINFORCE++ (arXiv:2501.03262).

The group's mean is the baseline; one standard deviation for the whole batch keeps groups with little spread from being
blown up. Assumes rewards on one scale for all prompts.
"""

from torch import Tensor

from grpo_plus.advantages.constraints import Ddof, Eps
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups, whiten
from grpo_plus.advantages.table import RewardTable


def batch_whiten(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """Whitened over the batch: (d − mean d) / (std d + eps), d = R − μ."""
    scorable_N = table.scorable()
    centred_N = Groups.of(table.groups).centre(table.totals(), scorable_N)
    return whiten(centred_N, scorable_N, eps=eps, ddof=ddof)


ESTIMATOR = Estimator("batch_whiten", batch_whiten, scope="batch")

"""Centred in the group, scaled over the batch: the baseline variant of REINFORCE++.

The group's mean is the baseline; one standard deviation for the whole batch keeps groups with little spread from being
blown up.

Use it when rewards are on one scale for all prompts, and a group that barely differs should pull less than one that
differs a lot.

Paper: REINFORCE++, arXiv:2501.03262.

Assumes rewards on one scale for all prompts.

Degenerate case: a group of equal rewards gives 0, and so does a batch of such groups.
"""

from torch import Tensor

from grpo_plus.advantages.constraints import Ddof, Eps
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups, whiten
from grpo_plus.advantages.table import RewardTable


def batch_whiten(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """Whitened over the batch: (d − mean d) / (std d + eps), d = R − μ.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("batch_whiten", RewardTable.of([1, 0, 4, 8], groups=[0, 0, 1, 1]), eps=0.0)
    tensor([ 0.2970, -0.2970, -1.1882,  1.1882])

    Args:
        table: the rewards.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
    """
    scorable_N = table.scorable()
    centred_N = Groups.of(table.groups).centre(table.totals(), scorable_N)
    return whiten(centred_N, scorable_N, eps=eps, ddof=ddof)


ESTIMATOR = Estimator("batch_whiten", batch_whiten, scope="batch")

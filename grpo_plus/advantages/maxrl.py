"""Deviation relative to the mean: MaxRL.

For 0/1 rewards the weight 1/μ turns the expected-reward gradient into one that approaches maximum likelihood: hard
prompts count more.

Use it when rewards are 0 or 1 and prompts that are rarely solved should count more, so that they are not neglected for
the easy ones.

Paper: MaxRL, arXiv:2602.02710.

Assumes rewards that are not negative.

Degenerate case: a mean of 0 or less, up to the tolerance of equal rewards, gives 0, not a sign flip or an explosion.
"""

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def maxrl(table: RewardTable) -> Tensor:
    """(R − μ) / μ, and 0 when μ ≤ 0.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("maxrl", RewardTable.of([1, 0, 0, 0]))
    tensor([ 3., -1., -1., -1.])
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    mean_G = groups.mean(totals_N, scorable_N)
    positive_G = mean_G > groups.tolerance(totals_N, scorable_N)
    inverse_G = torch.where(positive_G, 1 / mean_G, 0.0)
    return groups.centre(totals_N, scorable_N) * inverse_G[groups.index]


ESTIMATOR = Estimator("maxrl", maxrl)

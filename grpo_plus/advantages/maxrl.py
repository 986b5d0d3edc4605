"""Deviation relative to the mean: MaxRL (arXiv:2602.02710).

For 0/1 rewards the weight 1/μ turns the expected-reward gradient into one that approaches maximum likelihood: hard
prompts count more. Assumes rewards that are not negative; a mean of 0 or less, up to the tolerance within which rewards
count as equal, gives 0 instead of a sign flip or an explosion.
"""

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def maxrl(table: RewardTable) -> Tensor:
    """(R − μ) / μ, and 0 when μ ≤ 0."""
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    mean_G = groups.mean(totals_N, scorable_N)
    positive_G = mean_G > groups.tolerance(totals_N, scorable_N)
    inverse_G = torch.where(positive_G, 1 / mean_G, 0.0)
    return groups.centre(totals_N, scorable_N) * inverse_G[groups.index]


ESTIMATOR = Estimator("maxrl", maxrl)

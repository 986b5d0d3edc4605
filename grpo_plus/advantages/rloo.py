"""Leave-one-out baseline: RLOO (Kool et al. 2019; Ahmadian et al., arXiv:2402.14740).

R_i − mean of the others = (R_i − μ) · G / (G − 1): an unbiased baseline, because it does not contain the completion.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def rloo(table: RewardTable) -> Tensor:
    """R − mean of the others in the group = (R − μ) · G / (G − 1)."""
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    size_G = groups.size(totals_N, scorable_N)
    factor_G = size_G / (size_G - 1).clamp(min=1)
    return groups.centre(totals_N, scorable_N) * factor_G[groups.index]


ESTIMATOR = Estimator("rloo", rloo)

"""Leave-one-out baseline: RLOO.

R_i − mean of the rest = (R_i − μ) · G / (G − 1): an unbiased baseline, because it does not contain the completion.

Use it when groups are small, two to four completions: there a baseline that contains the completion shrinks the update
most. Nothing is divided by the spread, as in ``center``.

Paper: Kool et al., 2019, Buy 4 REINFORCE samples, get a baseline for free; Ahmadian et al., arXiv:2402.14740.

Degenerate case: a group of one, and one of equal rewards, gives 0.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def rloo(table: RewardTable) -> Tensor:
    """R − mean of the rest of the group = (R − μ) · G / (G − 1).

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("rloo", RewardTable.of([1, 1, 1, 0]))
    tensor([ 0.3333,  0.3333,  0.3333, -1.0000])
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    size_G = groups.size(totals_N, scorable_N)
    factor_G = size_G / (size_G - 1).clamp(min=1)
    return groups.centre(totals_N, scorable_N) * factor_G[groups.index]


ESTIMATOR = Estimator("rloo", rloo)

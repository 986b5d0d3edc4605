"""Distance from the group's mean: Dr. GRPO.

Dividing by the standard deviation weighs very easy and very hard prompts up; leaving it out does not.

Use it when rewards of all prompts are on one scale, and prompts that are nearly always or nearly never solved should
not count more than the rest.

Paper: Dr. GRPO, arXiv:2503.20783.

Degenerate case: a group of equal rewards gives 0.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def center(table: RewardTable) -> Tensor:
    """R − μ.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("center", RewardTable.of([1, 1, 1, 0]))
    tensor([ 0.2500,  0.2500,  0.2500, -0.7500])
    """
    return Groups.of(table.groups).centre(table.totals(), table.scorable())


ESTIMATOR = Estimator("center", center)

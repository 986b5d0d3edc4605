"""Distance from the group's mean: Dr. GRPO (arXiv:2503.20783).

Dividing by the standard deviation weighs very easy and very hard prompts up; leaving it out does not.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def center(table: RewardTable) -> Tensor:
    """R − μ."""
    return Groups.of(table.groups).centre(table.totals(), table.scorable())


ESTIMATOR = Estimator("center", center)

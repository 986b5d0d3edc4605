"""Z-score in the group: the advantage of GRPO (DeepSeekMath, arXiv:2402.03300, eq. 3) with TRL's numbers by default.

Assumes that rewards of different prompts are on different scales. With ``scale="batch"`` the mean stays the group's and
the standard deviation is that of all rewards of the batch (arXiv:2508.08221), which keeps easy and hard prompts from
being blown up. A group without contrast gives exactly 0, where float means would leave a residue over ``eps``.
"""

from typing import Literal

from torch import Tensor

from grpo_plus.advantages.constraints import Ddof, Eps
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups, ratio
from grpo_plus.advantages.table import RewardTable


def zscore(
    table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1, scale: Literal["group", "batch"] = "group"
) -> Tensor:
    """(R − μ) / (σ + eps); σ of the group, or of the whole batch."""
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    scaled_by = groups if scale == "group" else Groups.whole(totals_N)
    std_N = scaled_by.std(totals_N, scorable_N, ddof)[scaled_by.index]
    return ratio(groups.centre(totals_N, scorable_N), std_N + eps)


ESTIMATOR = Estimator("zscore", zscore)

"""Z-score in the group: the advantage of GRPO, with TRL's numbers by default.

With ``scale="batch"`` the mean is the group's and the standard deviation is that of all rewards of the batch, which
does not enlarge easy and hard prompts.

Use it when rewards of different prompts are on different scales, and as the plain GRPO for comparisons.

Paper: DeepSeekMath, arXiv:2402.03300, equation 3; ``scale="batch"``: arXiv:2508.08221.

Assumes that rewards of different prompts are on different scales: prompts that are nearly always or nearly never
solved are weighed up.

Degenerate case: a group without contrast gives exactly 0, despite rounding errors of float means.
"""

from typing import Literal

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Ddof, Eps, Groups, ratio
from grpo_plus.advantages.table import RewardTable


def zscore(
    table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1, scale: Literal["group", "batch"] = "group"
) -> Tensor:
    """(R − μ) / (σ + eps); σ of the group, or of the batch.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("zscore", RewardTable.of([1, 1, 1, 0]), ddof=0, eps=0.0)
    tensor([ 0.5774,  0.5774,  0.5774, -1.7321])

    Args:
        table: the rewards.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
        scale: the standard deviation is that of the ``group``, or of the ``batch``.
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    scaled_by = groups if scale == "group" else Groups.single(totals_N)
    std_N = scaled_by.std(totals_N, scorable_N, ddof)[scaled_by.index]
    return ratio(groups.centre(totals_N, scorable_N), std_N + eps)


ESTIMATOR = Estimator("zscore", zscore)

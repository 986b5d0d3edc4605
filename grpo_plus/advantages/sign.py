"""Better is 1, worse is −1, borderline is 0: only on which side of the group's mean a reward lies.

Assumes that the order of rewards is trusted and their distances are not. ``band`` is in population standard deviations
of the group. A reward at the mean, up to the tolerance within which rewards count as equal, is borderline even for
band 0: in float32 the middle of .3, .6, .9 is not at their mean.
"""

from typing import Annotated

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable
from grpo_verifiers.options import Range


def sign(table: RewardTable, *, band: Annotated[float, Range(0, finite=True)] = 0.0) -> Tensor:
    """sgn(R − μ) where |R − μ| > band · σ, otherwise 0 (σ of the population)."""
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    centred_N = groups.centre(totals_N, scorable_N)
    borderline_G = band * groups.std(totals_N, scorable_N, ddof=0) + groups.tolerance(totals_N, scorable_N)
    return centred_N.sign().masked_fill(centred_N.abs() <= borderline_G[groups.index], 0.0)


ESTIMATOR = Estimator("sign", sign)

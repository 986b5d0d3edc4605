"""Better is 1, worse is −1, borderline is 0: the side of the group's mean on which a reward lies.

Use it when rewards are noisy (from a judge, a reward model, a length) and only their order should count, not their
distances.

Assumes that the order of rewards is trusted and their distances are not.

Degenerate case: a reward at the mean, up to the tolerance of equal rewards, is borderline even for
band 0: in float32 the middle of .3, .6, .9 is not at their mean. A group of equal rewards gives 0.
"""

from typing import Annotated

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable
from grpo_verifiers.options import Range


def sign(table: RewardTable, *, band: Annotated[float, Range(0, finite=True)] = 0.0) -> Tensor:
    """sgn(R − μ) where |R − μ| > band · σ, otherwise 0 (σ of the population).

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("sign", RewardTable.of([0, 0.4, 0.5, 0.6, 1]), band=0.5)
    tensor([-1.,  0.,  0.,  0.,  1.])

    Args:
        table: the rewards.
        band: half the width of the borderline, in population standard deviations of the group.
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    centred_N = groups.centre(totals_N, scorable_N)
    borderline_G = band * groups.std(totals_N, scorable_N, ddof=0) + groups.tolerance(totals_N, scorable_N)
    return centred_N.sign().masked_fill(centred_N.abs() <= borderline_G[groups.index], 0.0)


ESTIMATOR = Estimator("sign", sign)

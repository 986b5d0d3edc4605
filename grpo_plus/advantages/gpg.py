"""Centred, and scaled up for the completions that teach nothing: GPG (arXiv:2504.02546).

Groups without contrast add nothing to the gradient but count in its mean; α = completions / completions of groups with
contrast undoes that dilution. Unscorable completions count on neither side.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def gpg(table: RewardTable) -> Tensor:
    """α · (R − μ), α = completions / completions of groups with contrast."""
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    live = groups.live(totals_N, scorable_N).sum().clamp(min=1)
    alpha = scorable_N.sum().to(totals_N.dtype) / live
    return groups.centre(totals_N, scorable_N) * alpha


ESTIMATOR = Estimator("gpg", gpg, scope="batch")

"""Centred, and scaled up by the share of completions without contrast: GPG.

Groups without contrast add nothing to the gradient but count in its mean; α = completions / completions of groups with
contrast undoes that dilution.

Use it when many groups are dead and the size of the update should not shrink with their number, without other
prompts in their place (``dead_groups: resample``).

Paper: GPG, arXiv:2504.02546.

Assumes that training tolerates a factor on the learning rate that varies by batch.

Degenerate case: a batch of dead groups only gives 0. Unscorable completions count on neither side.
"""

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable


def gpg(table: RewardTable) -> Tensor:
    """α · (R − μ), α = completions / completions of groups with contrast.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("gpg", RewardTable.of([1, 0, 1, 1, 0, 0], groups=[0, 0, 1, 1, 2, 2]))
    tensor([ 1.5000, -1.5000,  0.0000,  0.0000,  0.0000,  0.0000])
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    live = groups.live(totals_N, scorable_N).sum().clamp(min=1)
    alpha = scorable_N.sum().to(totals_N.dtype) / live
    return groups.centre(totals_N, scorable_N) * alpha


ESTIMATOR = Estimator("gpg", gpg, scope="batch")

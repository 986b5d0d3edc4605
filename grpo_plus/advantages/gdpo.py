"""Each reward normalised on its own, then summed: GDPO; TRL's ``normalize_then_sum``.

With the sum first, different combinations of rewards collapse into one advantage, and the reward with the largest
spread dominates; a z-score per reward separates them. Contrast is that of each reward column, not of the sum.

Use it when several rewards of different size or spread are summed (correctness, format, length), and none of them
should dominate.

Paper: GDPO, arXiv:2601.05242.

Degenerate case: a completion gets exactly 0 when no reward that applies to it (and has a weight) differs in its
group. With a single reward it is ``zscore``, whitened over the batch.
"""

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Ddof, Eps, Groups, whiten, zscores
from grpo_plus.advantages.table import RewardTable


def gdpo(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """Whitened over the batch: (x − mean x) / (std x + eps), x = Σ_k w_k · z_k, z_k in the group.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> table = RewardTable.of([[1, 0], [1, 1], [0, 1], [0, 0]], weights=[1.0, 0.5])
    >>> compute_advantages("gdpo", table, eps=0.0)
    tensor([ 0.3873,  1.1619, -0.3873, -1.1619])

    Args:
        table: the rewards, a column each.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
    """
    groups = Groups.of(table.groups)
    sum_N = torch.zeros_like(table.totals())
    live_N = torch.zeros_like(table.scorable())
    for reward_N, weight in zip(table.rewards.unbind(1), table.weights, strict=True):
        applies_N = ~reward_N.isnan()
        sum_N = sum_N + weight * zscores(reward_N, applies_N, groups, eps=eps, ddof=ddof)
        live_N = live_N | (groups.live(reward_N, applies_N) & (weight != 0))
    return whiten(sum_N, table.scorable(), eps=eps, ddof=ddof).masked_fill(~live_N, 0.0)


ESTIMATOR = Estimator("gdpo", gdpo, scope="batch", own_zero_rule=True, each_reward=True)

"""Only the best completion learns, by how far it leads: pass@k training (arXiv:2505.15201; arXiv:2508.10751).

Assumes that what counts is the best of the group. When the two best are tied nobody leads, and all get 0.
"""

import torch
from torch import Tensor

from grpo_plus.advantages.constraints import Ddof, Eps
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups, ratio
from grpo_plus.advantages.table import RewardTable


def passk(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """(best − second best) / (σ + eps) for the best one, 0 for the rest."""
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    best_G = groups.highest(totals_N, scorable_N)
    tied_N = scorable_N & (totals_N >= (best_G - groups.tolerance(totals_N, scorable_N))[groups.index])
    second_G = groups.highest(totals_N, scorable_N & ~tied_N)
    leads_G = (groups.size(totals_N, tied_N) == 1) & second_G.isfinite()
    lead_G = torch.where(leads_G, best_G - second_G, 0.0)
    value_G = ratio(lead_G, groups.std(totals_N, scorable_N, ddof) + eps)
    return value_G[groups.index].masked_fill(~tied_N, 0.0)


ESTIMATOR = Estimator("passk", passk)

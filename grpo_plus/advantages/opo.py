"""Length-weighted baseline: OPO.

Of all baselines the one that minimises the gradient's variance weighs each reward by its squared gradient norm; taking
that as proportional to the number of tokens trained on gives Σ l·R / Σ l. Tool
results have no gradient and do not count.

Use it when completions of a group differ much in length and each generation batch is trained on once.

Paper: OPO, arXiv:2505.23585.

Assumes exact on-policy training: with several optimizer steps on a generation batch it is a baseline like any other, no
longer the best.

Degenerate case: when no token of a group is trained on, the baseline is the mean.
"""

from typing import Any

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable
from grpo_verifiers.rules import notes


def opo(table: RewardTable) -> Tensor:
    """R − Σ l·R / Σ l, with l the tokens of a completion that are trained on.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("opo", RewardTable.of([1, 1, 1, 0], lengths=[10, 20, 30, 40]))
    tensor([ 0.4000,  0.4000,  0.4000, -0.6000])
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    # Around the mean first: weighing deviations keeps the digits that weighing large rewards would lose.
    centred_N = groups.centre(totals_N, scorable_N)
    lengths_N = table.trainable().sum(dim=1).to(totals_N.dtype)
    shift_G = groups.total(centred_N * lengths_N, scorable_N)
    weight_G = groups.total(lengths_N, scorable_N)
    shift_G = torch.where(weight_G > 0, shift_G / weight_G, 0.0)
    live_N = groups.live(totals_N, scorable_N)
    return (centred_N - shift_G[groups.index]).masked_fill(~live_N, 0.0)


def _off_policy(choice: Any) -> bool:
    return bool(choice.off_policy)


_OFF = "it assumes on-policy samples, but {c.off_policy}: its baseline is not the best one after the first step"
ESTIMATOR = Estimator("opo", opo, rules=(notes(_OFF, _off_policy),))

"""Rewards against a quantile of their group: with the median as baseline, one lucky completion moves nobody else."""

import torch
from torch import Tensor

from grpo_plus.advantages import RewardTable


def quantile(table: RewardTable, *, at: float = 0.5) -> Tensor:
    """R less the group's quantile of R: 0.5 is the median, a higher one praises fewer completions.

    A config sets the keyword by ``advantage: {name: quantile, at: 0.75}``. Group by id, never by reshape: groups may
    have different sizes and stand in any order, and what no verifier could score (NaN) is none of the group's business.
    """
    if not 0 <= at <= 1:
        raise ValueError(f"at is {at}, expected a share between 0 and 1.")
    totals, scorable = table.totals(), table.scorable()
    advantages = torch.zeros_like(totals)
    for group in table.groups.unique():
        members = (table.groups == group) & scorable
        if members.any():
            advantages[members] = totals[members] - totals[members].quantile(at)
    return advantages

"""Centred in the group, whitened over the tokens of the batch: the baseline variant of REINFORCE++.

The group's mean is the baseline; one standard deviation for the batch does not enlarge groups with little spread. Mean
and deviation of the batch are over its trained tokens, so that a completion counts by its length.

Use it when rewards are on one scale for all prompts, and a group that barely differs should pull less than one that
differs a lot.

Paper: REINFORCE++, arXiv:2501.03262, as verl computes it, with two differences. A group of equal rewards gives exactly
0, not minus the mean of the batch; and eps is added to the standard deviation, not 1e-8 to the variance.

Assumes rewards on one scale for all prompts.

Degenerate case: a group of equal rewards gives 0, and so does a batch of such groups.
"""

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Ddof, Eps, Groups, ratio
from grpo_plus.advantages.table import RewardTable


def batch_whiten(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """(d − mean d) / (std d + eps) over the tokens of the batch, d = R − μ.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("batch_whiten", RewardTable.of([1, 0, 4, 8], groups=[0, 0, 1, 1]), eps=0.0)
    tensor([ 0.2970, -0.2970, -1.1882,  1.1882])

    Args:
        table: the rewards.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
    """
    scorable_N, trainable_NT = table.scorable(), table.trainable()
    centred_N = Groups.of(table.groups).centre(table.totals(), scorable_N)
    tokens_N = trainable_NT.sum(1).to(centred_N) * scorable_N
    tokens_N = tokens_N if bool(tokens_N.any()) else scorable_N.to(centred_N)
    count = tokens_N.sum().clamp(min=1)
    away_N = centred_N - (tokens_N * centred_N).sum() / count
    largest = away_N.abs().max() if len(away_N) else count
    unit = torch.where(largest > 0, largest, 1.0)  # squares overflow
    std = (tokens_N * (away_N / unit).square()).sum().div((count - ddof).clamp(min=1)).sqrt() * unit
    live_N = Groups.single(centred_N).live(centred_N, tokens_N > 0)
    return ratio(away_N, std + eps).masked_fill(~live_N, 0.0)


ESTIMATOR = Estimator("batch_whiten", batch_whiten, scope="batch")

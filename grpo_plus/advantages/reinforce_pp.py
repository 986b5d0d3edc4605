"""Returns to go, whitened over the tokens of the batch: REINFORCE++.

A token's return is the sum of its completion's rewards from there: the KL term of each later token, if the objective
has it in the reward, and the reward itself on the last trained token.

Use it when there is one completion a prompt, or few, and no critic: the batch is the baseline.

Paper: REINFORCE++, arXiv:2501.03262, as verl computes it, with two differences. Tokens that are not trained on (tool
results) are skipped, while in verl the tokens before them get no reward; and eps is added to the standard
deviation, not 1e-8 to the variance.

Assumes rewards on one scale for all prompts. Long completions weigh more in the baseline: it is a mean over tokens.

Degenerate case: only a batch whose returns are all equal gives 0. It is not relative to a group: a group of equal
rewards still learns when it is better or worse than the batch.
"""

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.gae import generalised
from grpo_plus.advantages.grouping import Ddof, Eps, whiten
from grpo_plus.advantages.table import RewardTable, token_rewards


def reinforce_pp(table: RewardTable, *, eps: Eps = 1e-4, ddof: Ddof = 1) -> Tensor:
    """(G − mean G) / (std G + eps) over the tokens of the batch, G_t = Σ_{k≥t} r_k.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("reinforce_pp", RewardTable.of([1, 0], lengths=[1, 3]), ddof=0, eps=0.0)
    tensor([[ 1.7321,  0.0000,  0.0000],
            [-0.5774, -0.5774, -0.5774]])

    Args:
        table: the rewards.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
    """
    rewards_NT, trainable_NT = token_rewards(table), table.trainable()
    returns_NT = generalised(rewards_NT, torch.zeros_like(rewards_NT), trainable_NT, 1.0, 1.0)
    live_NT = trainable_NT & table.scorable()[:, None]
    return whiten(returns_NT.flatten(), live_NT.flatten(), eps=eps, ddof=ddof).view_as(returns_NT)


ESTIMATOR = Estimator("reinforce_pp", reinforce_pp, per="token", group_relative=False, scope="batch")

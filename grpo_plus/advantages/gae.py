"""Generalised advantage estimation: rewards against a critic's values.

δ_t = r_t + γ·V_{t+1} − V_t and A_t = Σ_l (γλ)^l·δ_{t+l}, over the trained tokens of a completion. Tokens that are not
trained on (tool results) are skipped: the successor of a token is the next trained one. The reward is on the last
trained token, after which the value is 0; a KL term in the reward is on each token. λ = 1 is R − V, λ = 0 is δ.
``length_alpha`` makes λ depend on the length, λ_i = 1 − 1/(α·l_i) in [0, 1]: long completions propagate the reward,
short ones trust the critic.

Use it when there is one completion a prompt, or when credit should differ from token to token without a verifier of
steps. With objective ``ppo_clip`` it is PPO. It needs a critic, which is trained with the policy.

Paper: Schulman et al., arXiv:1506.02438; PPO, arXiv:1707.06347; ``length_alpha`` is VAPO's, arXiv:2504.05118.

Assumes that the critic has learned something: warm it up, or its errors are the advantages of the first steps.

Degenerate case: a completion without a reward, and one without a trained token, gets exactly 0. Equal rewards in a
group do not: nothing is relative to a group.

Config:
    advantage: {name: gae, gamma: 1.0, lam: 0.95, whiten: true}
    objective: ppo_clip
    critic: {}
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import whiten as whitened
from grpo_plus.advantages.table import RewardTable, token_rewards, values_of
from grpo_verifiers.options import Range

Discount = Annotated[float, Range(0, 1)]
_EPS = 1e-8


def gae(
    table: RewardTable,
    *,
    gamma: Discount = 1.0,
    lam: Discount = 1.0,
    length_alpha: Annotated[float, Range(0, open_low=True, finite=True)] | None = None,
    whiten: bool = False,
) -> Tensor:
    """Σ_l (γλ)^l·δ_{t+l} with δ_t = r_t + γ·V_{t+1} − V_t, whitened over the batch's trained tokens with ``whiten``.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("gae", RewardTable.of([1], values=[[0.5, 0.6, 0.8]]), lam=0.5)
    tensor([[0.2500, 0.3000, 0.2000]])

    Args:
        table: the rewards and the critic's values.
        gamma: discount of later rewards and values.
        lam: 1 trusts the reward (R − V), 0 trusts the critic (one step ahead).
        length_alpha: λ depends on the length, 1 − 1/(α·tokens), instead of ``lam``.
        whiten: gives the trained tokens of the batch mean 0 and standard deviation 1.
    """
    trainable_NT = table.trainable()
    values_NT = values_of(table)[:, : table.width]
    lam_N: Tensor | float = lam
    if length_alpha is not None:
        lam_N = (1 - 1 / (length_alpha * trainable_NT.sum(dim=1).double())).clamp(0, 1)
    got_NT = generalised(token_rewards(table), values_NT, trainable_NT, gamma, lam_N)
    if not whiten:
        return got_NT
    live_NT = trainable_NT & table.scorable()[:, None]
    return whitened(got_NT.flatten(), live_NT.flatten(), eps=_EPS, ddof=1).view_as(got_NT)


def generalised(
    rewards_NT: Tensor, values_NT: Tensor, trainable_NT: Tensor, gamma: float, lam_N: Tensor | float
) -> Tensor:
    """Return generalised advantages, (N, T) in float64; 0 for tokens that are not trained on and rows with a NaN.

    >>> rewards = torch.tensor([[0.0, 0.0, 1.0]])
    >>> values = torch.tensor([[0.5, 0.6, 0.8]])
    >>> generalised(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=1.0, lam_N=1.0)
    tensor([[0.5000, 0.4000, 0.2000]], dtype=torch.float64)

    A value is that of the state before its token. Values of tokens that are not trained on are ignored. The target
    for values is ``generalised(...) + values_NT``.
    """
    # The trained tokens move to the left, in their order: the successor of each is its neighbour.
    order_NT = torch.argsort(~trainable_NT, dim=1, stable=True)
    trained_NT = trainable_NT.gather(1, order_NT)
    at_NT = values_NT.double().gather(1, order_NT).masked_fill(~trained_NT, 0.0)
    following_NT = torch.nn.functional.pad(at_NT[:, 1:], (0, 1))
    rewarded_NT = rewards_NT.double().gather(1, order_NT)
    valid_NT = trained_NT & ~rewards_NT.isnan().any(1, keepdim=True)
    sums_NT = (rewarded_NT + gamma * following_NT - at_NT).masked_fill(~valid_NT, 0.0)
    factor_N1 = torch.as_tensor(gamma * lam_N, dtype=torch.float64, device=values_NT.device).expand(len(values_NT))[
        :, None
    ]
    # Sums of 1, 2, 4, … terms: each doubling adds the sum as many tokens further on, discounted by as many factors.
    terms = 1
    while terms < trained_NT.shape[1]:
        sums_NT = sums_NT + factor_N1**terms * torch.nn.functional.pad(sums_NT[:, terms:], (0, terms))
        terms *= 2
    return torch.zeros_like(sums_NT).scatter(1, order_NT, sums_NT)


def _check(keywords: Mapping[str, Any]) -> list[str]:
    """A ``lam`` without effect."""
    lam, alpha = keywords.get("lam"), keywords.get("length_alpha")
    if alpha is None or lam is None:
        return []
    text = f"advantage estimator 'gae': keywords 'lam' ({lam!r}) and 'length_alpha' ({alpha!r}) both set λ"
    return [f"{text}, the second one by length: keep one of the two."]


ESTIMATOR = Estimator("gae", gae, per="token", group_relative=False, reads_values=True, check=_check)

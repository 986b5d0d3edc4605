"""Surrogates: a ratio or a log-probability weighted by the advantage, maximised token by token.

Every function takes a `TokenBatch` and the ratio, (B, T) or (B, 1), and returns `Terms`. A zero advantage gives a
zero gradient in all of them.
"""

# ruff: noqa: RUF001 - formulas

from typing import Annotated

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Metric, Terms, TokenBatch
from grpo_plus.objectives.pieces import Piece
from grpo_verifiers.options import Range

AtLeast0 = Annotated[float, Range(0)]
MoreThan0 = Annotated[float, Range(0, open_low=True)]


def clip(
    batch: TokenBatch,
    ratio: Tensor,
    *,
    epsilon_low: AtLeast0 = 0.2,
    epsilon_high: AtLeast0 | None = None,
    delta: MoreThan0 | None = None,
    dual: Annotated[float, Range(1, open_low=True)] | None = None,
) -> Terms:
    """The smaller of ρA and ρA with ρ kept in [1 − ε_low, 1 + ε_high] (PPO, arXiv:1707.06347; DAPO, arXiv:2503.14476).

    Below 1 − ``epsilon_low`` a negative advantage stops pushing, above 1 + ``epsilon_high`` (the same if unset) a
    positive one stops pulling. ``delta`` caps ρ in the unclipped term (INTELLECT-2, arXiv:2505.07291). ``dual`` sets
    the floor ``dual·A`` for negative advantages (dual-clip PPO, arXiv:1912.09729).
    """
    advantages = batch.advantages
    low, high = 1 - epsilon_low, 1 + (epsilon_low if epsilon_high is None else epsilon_high)
    capped = ratio if delta is None else ratio.clamp(max=delta)
    values = torch.min(capped * advantages, ratio.clamp(low, high) * advantages)
    past_low = (capped < low) & (advantages < 0)
    past_high = (capped > high) & (advantages > 0)
    past = past_low | past_high
    if delta is not None:
        past = past | ((ratio > delta) & (advantages < 0))
    if dual is not None:
        values = torch.where(advantages < 0, torch.max(values, dual * advantages), values)
        past = past | ((ratio > dual) & (advantages < 0))
    return Terms(values, clip_metrics(past_low, past_high), settled=past, pulled=advantages != 0)


CLIP = Piece(
    "surrogate",
    "clip",
    clip,
    "min(r·A, clip(r, 1 − {epsilon_low}, 1 + {epsilon_high})·A)",
    zero_advantage_means_zero_gradient=True,
    settles=True,
)


def clip_metrics(past_low: Tensor, past_high: Tensor) -> dict[str, Metric]:
    """The shares of tokens past their clip, under TRL's names."""
    low, high, both = past_low.float(), past_high.float(), (past_low | past_high).float()
    return {
        "clip_ratio/low_mean": Metric(low),
        "clip_ratio/high_mean": Metric(high),
        "clip_ratio/region_mean": Metric(both),
        "clip_ratio/low_min": Metric(low, "min"),
        "clip_ratio/high_max": Metric(high, "max"),
    }


def importance(batch: TokenBatch, ratio: Tensor) -> Terms:
    """ρA without any clip: plain importance sampling."""
    return Terms(ratio * batch.advantages)


IS = Piece("surrogate", "is", importance, "r·A", zero_advantage_means_zero_gradient=True)


def logp(batch: TokenBatch, ratio: Tensor) -> Terms:  # noqa: ARG001 - every surrogate is called alike
    """A·log π: REINFORCE (Williams 1992).

    Assumes on-policy samples: it has no ratio, so its gradient is biased after the first optimizer step on a batch.
    """
    return Terms(batch.advantages * torch.where(batch.mask, batch.logps, 0.0))


LOGP = Piece("surrogate", "logp", logp, "A·lp_t", ratios=("none",), zero_advantage_means_zero_gradient=True)


def cispo(batch: TokenBatch, ratio: Tensor, *, epsilon_max: MoreThan0 = 5.0) -> Terms:
    """sg[min(ρ, ε_max)]·A·log π (CISPO, MiniMax-M1, arXiv:2506.13585; ε_max as in ScaleRL, arXiv:2510.13786).

    The weight is capped, the gradient of the token never cut. ``epsilon_max`` is the cap itself, not 1 + ε.
    """
    weight = ratio.detach().clamp(max=epsilon_max)
    capped = (ratio > epsilon_max) & (batch.advantages > 0)
    values = weight * batch.advantages * torch.where(batch.mask, batch.logps, 0.0)
    return Terms(values, {"cispo_clip_ratio": Metric(capped.float())})


CISPO = Piece("surrogate", "cispo", cispo, "sg[min(r, {epsilon_max})]·A·lp_t", zero_advantage_means_zero_gradient=True)


def dis(batch: TokenBatch, ratio: Tensor, *, epsilon_low: AtLeast0 = 0.8, epsilon_high: AtLeast0 = 3.0) -> Terms:
    """sg[ρ]·A·log π where 1 − ε_low ≤ ρ ≤ 1 + ε_high, else 0 (direct double-sided importance sampling of SAO).

    arXiv:2607.07508, section 3.1.

    A token outside is left out on both sides, whatever the sign of its advantage: a clip would only stop one of them.
    ρ is against the policy that drew: importance weights per token of another sampler belong inside it. Those per
    completion multiply what is left.

    The paper trains agents that write code with the defaults, and mathematics with tools with 0.3 and 5.0.
    """
    drawn, factor = ratio.detach(), ratio.new_ones(())
    if batch.weights is not None and batch.weights.shape == batch.mask.shape:
        drawn = drawn * batch.weights
    elif batch.weights is not None:
        factor = batch.weights
    past_low, past_high = drawn < 1 - epsilon_low, drawn > 1 + epsilon_high
    weight = torch.where(past_low | past_high, 0.0, drawn) * factor
    values = weight * batch.advantages * torch.where(batch.mask, batch.logps, 0.0)
    return Terms(values, clip_metrics(past_low, past_high))


DIS = Piece(
    "surrogate",
    "dis",
    dis,
    "sg[r]·A·lp_t where 1 − {epsilon_low} ≤ r ≤ 1 + {epsilon_high}, else 0",
    zero_advantage_means_zero_gradient=True,
    weighs_itself=True,
)


def sapo(
    batch: TokenBatch, ratio: Tensor, *, temperature_pos: MoreThan0 = 1.0, temperature_neg: MoreThan0 = 1.05
) -> Terms:
    """σ(τ(ρ − 1))·4/τ·A, τ by the sign of A: a smooth gate instead of a clip (SAPO, arXiv:2511.20347)."""
    positive = batch.advantages > 0
    temperature = torch.where(positive, temperature_pos, temperature_neg).to(ratio.dtype)
    return Terms(torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * batch.advantages)


SAPO = Piece(
    "surrogate",
    "sapo",
    sapo,
    "σ(τ(r − 1))·4/τ·A, τ = {temperature_pos} where A > 0, else {temperature_neg}",
    zero_advantage_means_zero_gradient=True,
)

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
    """The smaller of ρA and ρA with ρ clipped to [1 − ε_low, 1 + ε_high]: the clip of PPO.

    Use it when each generation batch is trained on for several steps: a token whose ratio has moved far enough has no
    further pull. A higher ``epsilon_high`` (0.28 in DAPO) lets rare tokens rise.

    Paper: PPO, arXiv:1707.06347; ``epsilon_high``: DAPO, arXiv:2503.14476; ``delta``: INTELLECT-2, arXiv:2505.07291;
    ``dual``: dual-clip PPO, arXiv:1912.09729.

    Degenerate case: before the first update on a batch every ratio is 1 and nothing is clipped.

    Args:
        batch: the tokens.
        ratio: of each token or completion.
        epsilon_low: below 1 − ``epsilon_low`` a negative advantage stops pushing.
        epsilon_high: above 1 + ``epsilon_high`` a positive advantage stops pulling; as ``epsilon_low`` if unset.
        delta: the largest ratio of the term that is not clipped: bounds the push of negative advantages.
        dual: the floor ``dual·A`` for negative advantages.
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
    by_ratio=True,
)


def clip_metrics(past_low: Tensor, past_high: Tensor) -> dict[str, Metric]:
    """Return the shares of tokens past their clip, under TRL's names."""
    low, high, both = past_low.float(), past_high.float(), (past_low | past_high).float()
    return {
        "clip_ratio/low_mean": Metric(low),
        "clip_ratio/high_mean": Metric(high),
        "clip_ratio/region_mean": Metric(both),
        "clip_ratio/low_min": Metric(low, "min"),
        "clip_ratio/high_max": Metric(high, "max"),
    }


def importance(batch: TokenBatch, ratio: Tensor) -> Terms:
    """ρA without any clip: plain importance sampling.

    Use it when each generation batch is trained on once, or to see what a clip changes: it is unbiased off-policy and
    of unbounded variance.

    Degenerate case: on-policy its gradient is that of ``logp``.
    """
    return Terms(ratio * batch.advantages)


IS = Piece("surrogate", "is", importance, "r·A", zero_advantage_means_zero_gradient=True)


def logp(batch: TokenBatch, ratio: Tensor) -> Terms:  # noqa: ARG001 - the signature of every surrogate
    """A·log π: REINFORCE.

    Use it when each generation batch is trained on for one step, where no ratio is needed.

    Paper: Williams, 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning.

    Assumes on-policy samples: it has no ratio, so its gradient is biased after the first optimizer step on a batch.

    Degenerate case: negative advantages push a probability down without a bound.
    """
    return Terms(batch.advantages * torch.where(batch.mask, batch.logps, 0.0))


LOGP = Piece("surrogate", "logp", logp, "A·lp_t", ratios=("none",), zero_advantage_means_zero_gradient=True)


def cispo(batch: TokenBatch, ratio: Tensor, *, epsilon_max: MoreThan0 = 5.0) -> Terms:
    """The ratio as a capped weight without a gradient, times A·log π: CISPO.

    The weight is capped, the gradient of the token never cut.

    Use it when rare tokens that turn a solution around (however, wait) should keep their gradient, which a clip cuts
    off first.

    Paper: MiniMax-M1, arXiv:2506.13585; the cap of 5 as in ScaleRL, arXiv:2510.13786.

    Degenerate case: on-policy it is REINFORCE.

    Args:
        batch: the tokens.
        ratio: of each token or completion.
        epsilon_max: the largest weight: the cap itself, not 1 + ε.
    """
    weight = ratio.detach().clamp(max=epsilon_max)
    capped = (ratio > epsilon_max) & (batch.advantages > 0)
    values = weight * batch.advantages * torch.where(batch.mask, batch.logps, 0.0)
    return Terms(values, {"cispo_clip_ratio": Metric(capped.float())})


CISPO = Piece(
    "surrogate",
    "cispo",
    cispo,
    "sg[min(r, {epsilon_max})]·A·lp_t",
    zero_advantage_means_zero_gradient=True,
    by_ratio=True,
)


def dis(batch: TokenBatch, ratio: Tensor, *, epsilon_low: AtLeast0 = 0.8, epsilon_high: AtLeast0 = 3.0) -> Terms:
    """The ratio as a weight without a gradient, and 0 outside of a trust region: direct double-sided sampling of SAO.

    A token outside is dropped on both sides, for either sign of its advantage: a clip would only stop one of them.
    ρ is against the sampling policy: importance weights per token of another sampler belong inside it. Those per
    completion multiply the result.

    Use it when completions come from an older policy or another engine (vLLM with token-level importance weights),
    and tokens far off should have no gradient at all.

    Paper: SAO, arXiv:2607.07508, section 3.1: the defaults are those for agents that write code; mathematics with
    tools has 0.3 and 5.0.

    Degenerate case: while every ratio is 1, as before the first update on a batch, it is REINFORCE.

    Args:
        batch: the tokens.
        ratio: of each token or completion.
        epsilon_low: tokens with a ratio below 1 − ``epsilon_low`` are dropped.
        epsilon_high: tokens with a ratio above 1 + ``epsilon_high`` are dropped.
    """
    weight, factor = ratio.detach(), ratio.new_ones(())
    if batch.weights is not None and batch.weights.shape == batch.mask.shape:
        weight = weight * batch.weights
    elif batch.weights is not None:
        factor = batch.weights
    past_low, past_high = weight < 1 - epsilon_low, weight > 1 + epsilon_high
    weight = torch.where(past_low | past_high, 0.0, weight) * factor
    values = weight * batch.advantages * torch.where(batch.mask, batch.logps, 0.0)
    return Terms(values, clip_metrics(past_low, past_high))


DIS = Piece(
    "surrogate",
    "dis",
    dis,
    "sg[r]·A·lp_t where 1 − {epsilon_low} ≤ r ≤ 1 + {epsilon_high}, else 0",
    zero_advantage_means_zero_gradient=True,
    weighs_itself=True,
    by_ratio=True,
)


def sapo(
    batch: TokenBatch, ratio: Tensor, *, temperature_pos: MoreThan0 = 1.0, temperature_neg: MoreThan0 = 1.05
) -> Terms:
    """A smooth gate instead of a clip: the pull of a token fades as its ratio leaves 1.

    Use it when a hard clip throws away too many tokens, or trains unstably on mixtures of experts.

    Paper: SAPO, arXiv:2511.20347.

    Degenerate case: on-policy the gradient is that of ``is``, at any temperature.

    Args:
        batch: the tokens.
        ratio: of each token or completion.
        temperature_pos: how fast the gate closes for positive advantages.
        temperature_neg: the same for negative ones; higher closes faster.
    """
    positive = batch.advantages > 0
    temperature = torch.where(positive, temperature_pos, temperature_neg).to(ratio.dtype)
    return Terms(torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * batch.advantages)


SAPO = Piece(
    "surrogate",
    "sapo",
    sapo,
    "σ(τ(r − 1))·4/τ·A, τ = {temperature_pos} where A > 0, else {temperature_neg}",
    zero_advantage_means_zero_gradient=True,
    by_ratio=True,
)

"""DPPO, ``dppo_tv`` and ``dppo_kl``: a trust region of probabilities in place of a clip of ratios.

A ratio says little about how far a policy has moved: a token of probability 1e-4 doubles by next to nothing, and one of
0.9 hardly has a ratio while a tenth of all probability moves elsewhere. Here a token is dropped once it has moved too
far in the direction of its advantage. The distance is that of two distributions over two outcomes, this token or any
other: the total variation, or KL(old ‖ new).

Use it when a clip of ratios cuts rare tokens off early and lets frequent ones move far: with large vocabularies, and
where completions come from another engine.

Paper: DPPO, arXiv:2602.04879, equations 12 to 14; checked against its authors' code, the source of the weight's cap.

Deviation: the default thresholds are the paper's. Its variants over the k most probable tokens are missing: only the
probability of the sampled token is available.

Assumes that the region lies around the sampling policy. The paper shows that one around recomputed log-probabilities
is unstable, so importance weights per token of another sampler belong inside the ratio and inside the old probability.
Those per completion multiply the result.

Degenerate case: until the policy moves in a generation batch, no token is dropped.
"""

# ruff: noqa: RUF001 - formulas

from typing import Annotated

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Terms, TokenBatch
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.surrogate import MoreThan0, clip_metrics
from grpo_verifiers.options import Range

_SURE = -1e-12
"""The largest log-probability: 1 − p still has a logarithm."""


def dppo_tv(
    batch: TokenBatch,
    ratio: Tensor,
    *,
    max_tv: Annotated[float, Range(0, 1, open_low=True)] = 0.2,
    ratio_max: MoreThan0 = 20.0,
) -> Terms:
    """sg[min(ρ, ρ_max)]·A·log π, 0 where A > 0 and p − p_old > ``max_tv``, or A < 0 and p_old − p > ``max_tv``.

    Args:
        batch: the tokens.
        ratio: of each token.
        max_tv: how far a token's probability may move.
        ratio_max: the largest weight; it caps the weight alone.
    """
    logps, old_logps, weight = _detached(batch, ratio)
    moved = logps.exp() - old_logps.exp()
    return _terms(batch, weight.clamp(max=ratio_max), fell=moved < -max_tv, rose=moved > max_tv)


DPPO_TV = Piece(
    "surrogate",
    "dppo_tv",
    dppo_tv,
    "sg[min(ρ_t, {ratio_max})]·A·lp_t, 0 where p − p_old > {max_tv} and A > 0, or < −{max_tv} and A < 0",
    ratios=("token",),
    zero_advantage_means_zero_gradient=True,
    weighs_itself=True,
    settles=True,
    by_ratio=True,
)


def dppo_kl(batch: TokenBatch, ratio: Tensor, *, max_kl: MoreThan0 = 0.05, ratio_max: MoreThan0 = 20.0) -> Terms:
    """sg[min(ρ, ρ_max)]·A·log π, 0 where the KL divergence from (p_old, 1 − p_old) to (p, 1 − p) is above ``max_kl``.

    Only in the direction of A, as for `dppo_tv`.

    Args:
        batch: the tokens.
        ratio: of each token.
        max_kl: the divergence that a token may reach, in nats.
        ratio_max: the largest weight; it caps the weight alone.
    """
    logps, old_logps, weight = _detached(batch, ratio)
    old = old_logps.exp()
    divergence = old * (old_logps - logps) + (1 - old) * (_log_rest(old_logps) - _log_rest(logps))
    far, rises = divergence > max_kl, logps > old_logps
    return _terms(batch, weight.clamp(max=ratio_max), fell=far & ~rises, rose=far & rises)


DPPO_KL = Piece(
    "surrogate",
    "dppo_kl",
    dppo_kl,
    "sg[min(ρ_t, {ratio_max})]·A·lp_t, 0 where KL((p_old, 1 − p_old) ‖ (p, 1 − p)) > {max_kl} in the direction of A",
    ratios=("token",),
    zero_advantage_means_zero_gradient=True,
    weighs_itself=True,
    settles=True,
    by_ratio=True,
)


def _detached(batch: TokenBatch, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T) log-probabilities of the current and the sampling policy, and their ratio; all without gradient."""
    weight = ratio.detach()
    logps, old_logps = (torch.where(batch.mask, x.detach(), 0.0) for x in (batch.logps, batch.old_logps))
    if batch.weights is not None and batch.weights.shape == batch.mask.shape:
        weight = weight * batch.weights
        old_logps = old_logps - torch.where(batch.weights > 0, batch.weights, 1.0).log()
    return logps.clamp(max=_SURE), old_logps.clamp(max=_SURE), weight


def _log_rest(logps: Tensor) -> Tensor:
    """log(1 − p), exact for p near 0 and near 1."""
    return torch.log(-torch.expm1(logps))


def _terms(batch: TokenBatch, weight: Tensor, *, fell: Tensor, rose: Tensor) -> Terms:
    past_low, past_high = fell & (batch.advantages < 0), rose & (batch.advantages > 0)
    past = past_low | past_high
    weight = torch.where(past, 0.0, weight)
    if batch.weights is not None and batch.weights.shape != batch.mask.shape:
        weight = weight * batch.weights
    values = weight * batch.advantages * torch.where(batch.mask, batch.logps, 0.0)
    return Terms(values, clip_metrics(past_low, past_high), settled=past, pulled=batch.advantages != 0)

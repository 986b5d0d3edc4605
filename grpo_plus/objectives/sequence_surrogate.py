"""Surrogates of all token ratios of a completion at once."""

# ruff: noqa: RUF001 - formulas

import math

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Metric, Terms, TokenBatch, row_mean
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.ratio import bounded_exp
from grpo_plus.objectives.surrogate import AtLeast0, clip_metrics

_LOWEST, _HIGHEST = math.log(1e-8), 20.0


def gmpo(
    batch: TokenBatch,
    ratio: Tensor,  # noqa: ARG001 - the signature of every surrogate
    *,
    epsilon_low: AtLeast0 = 0.4,
    epsilon_high: AtLeast0 | None = None,
) -> Terms:
    """The geometric mean of the clipped token ratios, times A: GMPO.

    The bounds are in log space: ratios are clipped to (exp(−ε_low), exp(ε_high)), on the side of the
    advantage. A token outside the focus is not in the mean.

    Use it when single tokens with extreme ratios disturb training, and for a wider clip than GRPO allows.

    Paper: GMPO, arXiv:2507.20673.

    Degenerate case: a completion of one token is clipped as by ``clip``, with bounds exp(±ε).

    Args:
        batch: the tokens.
        ratio: not read: it is computed from the token ratios.
        epsilon_low: the lower bound of a token's log-ratio is −``epsilon_low``.
        epsilon_high: the upper bound; as ``epsilon_low`` if unset.
    """
    high = epsilon_low if epsilon_high is None else epsilon_high
    log_ratio, advantages = batch.log_ratio, batch.advantages
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=-epsilon_low))
    mask = batch.mask if batch.focus is None else batch.mask & batch.focus
    past_low = (log_ratio < -epsilon_low) & (advantages < 0)
    past_high = (log_ratio > high) & (advantages > 0)
    values = bounded_exp(row_mean(clipped, mask)) * advantages
    metrics = clip_metrics(past_low, past_high)
    return Terms(values, metrics, settled=past_low | past_high, pulled=advantages != 0)


GMPO = Piece(
    "surrogate",
    "gmpo",
    gmpo,
    "exp(mean_t(clip(lp_t − old_t, −{epsilon_low}, {epsilon_high}; on the side of A)))·A",
    ratios=("token",),
    per_completion=True,
    zero_advantage_means_zero_gradient=True,
    focuses_itself=True,
    settles=True,
    by_ratio=True,
)


def vespo(
    batch: TokenBatch,
    ratio: Tensor,  # noqa: ARG001 - the signature of every surrogate
    *,
    k_pos: AtLeast0 = 2.0,
    lambda_pos: AtLeast0 = 3.0,
    k_neg: AtLeast0 = 3.0,
    lambda_neg: AtLeast0 = 2.0,
) -> Terms:
    """A smooth weight of the completion's ratio S, φ(S) = exp(λ)·S^k·exp(−λS), without a gradient: VESPO.

    S is the unnormalised ratio of the completion, k and λ depend on the sign of A, and φ(1) = 1. Importance weights of
    another sampler belong inside S. Everything is bounded in log space: tokens to ±20, S from below to 1e-8.

    Use it when completions come from a stale policy (asynchronous sampling, many steps on a batch), where ratios of
    completions vary by orders of magnitude.

    Paper: VESPO, arXiv:2602.10693.

    Degenerate case: on-policy φ is 1 and it is REINFORCE.

    Args:
        batch: the tokens.
        ratio: not read: it is computed from the token ratios.
        k_pos: exponent of S where A ≥ 0: how fast the weight falls below 1.
        lambda_pos: rate where A ≥ 0: how fast the weight falls above 1.
        k_neg: exponent where A < 0.
        lambda_neg: rate where A < 0.
    """
    with torch.no_grad():
        log_s = batch.log_ratio.clamp(-_HIGHEST, _HIGHEST).sum(-1, keepdim=True)
        if batch.weights is not None:
            log_weights = torch.log(batch.weights).clamp(_LOWEST, _HIGHEST)
            log_s = log_s + torch.where(batch.mask, log_weights, 0.0).sum(-1, keepdim=True)
        log_s = log_s.clamp(_LOWEST, _HIGHEST)
        good = batch.advantages >= 0
        k = torch.where(good, k_pos, k_neg).to(log_s.dtype)
        lam = torch.where(good, lambda_pos, lambda_neg).clamp(min=1e-4).to(log_s.dtype)
        phi = torch.exp(lam + k * log_s - lam * torch.exp(log_s)).nan_to_num(posinf=0.0)
    values = phi * batch.advantages * torch.where(batch.mask, batch.logps, 0.0)
    return Terms(values, {"vespo/phi_seq_mean": Metric(phi)})


VESPO = Piece(
    "surrogate",
    "vespo",
    vespo,
    "sg[exp(λ)·S^k·exp(−λS)]·A·lp_t, k = {k_pos}, λ = {lambda_pos} where A ≥ 0, else {k_neg}, {lambda_neg}",
    ratios=("token",),
    zero_advantage_means_zero_gradient=True,
    weighs_itself=True,
    by_ratio=True,
)

"""The built-in pieces with their formulas, their limits, and what they may be composed with."""

# ruff: noqa: RUF001 - formulas

from grpo_plus.objectives import kl, ratio, reduce, sequence_surrogate, surrogate, target
from grpo_plus.objectives.pieces import Piece
from grpo_plus.recipe.bounds import Bounds

_NOT_NEGATIVE, _POSITIVE = Bounds(low=0), Bounds(low=0, open_low=True)
_CLIP = {"epsilon_low": _NOT_NEGATIVE, "epsilon_high": _NOT_NEGATIVE}

RATIO_TOKEN = Piece("ratio", "token", ratio.token, "ρ_t = exp(lp_t − old_t)")
RATIO_SEQUENCE = Piece(
    "ratio", "sequence", ratio.sequence, "s = exp(mean_t(lp_t − old_t))", per_completion=True, weighs_kl=True
)
RATIO_SEQUENCE_TOKEN = Piece("ratio", "sequence_token", ratio.sequence_token, "s_t = sg[s]·exp(lp_t − sg[lp_t])")
RATIO_SEQUENCE_SUM = Piece(
    "ratio", "sequence_sum", ratio.sequence_sum, "S = exp(Σ_t(lp_t − old_t))", per_completion=True
)
RATIO_NONE = Piece("ratio", "none", ratio.none, "1")

SURROGATE_CLIP = Piece(
    "surrogate",
    "clip",
    surrogate.clip,
    "min(r·A, clip(r, 1 − {epsilon_low}, 1 + {epsilon_high})·A)",
    bounds={**_CLIP, "delta": _POSITIVE, "dual": Bounds(low=1, open_low=True)},
    zero_advantage_means_zero_gradient=True,
    settles=True,
)
SURROGATE_IS = Piece("surrogate", "is", surrogate.importance, "r·A", zero_advantage_means_zero_gradient=True)
SURROGATE_LOGP = Piece(
    "surrogate", "logp", surrogate.logp, "A·lp_t", ratios=("none",), zero_advantage_means_zero_gradient=True
)
SURROGATE_CISPO = Piece(
    "surrogate",
    "cispo",
    surrogate.cispo,
    "sg[min(r, {epsilon_max})]·A·lp_t",
    bounds={"epsilon_max": _POSITIVE},
    zero_advantage_means_zero_gradient=True,
)
SURROGATE_SAPO = Piece(
    "surrogate",
    "sapo",
    surrogate.sapo,
    "σ(τ(r − 1))·4/τ·A, τ = {temperature_pos} where A > 0, else {temperature_neg}",
    bounds={"temperature_pos": _POSITIVE, "temperature_neg": _POSITIVE},
    zero_advantage_means_zero_gradient=True,
)
SURROGATE_GMPO = Piece(
    "surrogate",
    "gmpo",
    sequence_surrogate.gmpo,
    "exp(mean_t(clip(lp_t − old_t, −{epsilon_low}, {epsilon_high}; on the side of A)))·A",
    bounds=_CLIP,
    ratios=("token",),
    per_completion=True,
    zero_advantage_means_zero_gradient=True,
    focuses_itself=True,
    settles=True,
)
SURROGATE_VESPO = Piece(
    "surrogate",
    "vespo",
    sequence_surrogate.vespo,
    "sg[exp(λ)·S^k·exp(−λS)]·A·lp_t, k = {k_pos}, λ = {lambda_pos} where A ≥ 0, else {k_neg}, {lambda_neg}",
    bounds=dict.fromkeys(("k_pos", "lambda_pos", "k_neg", "lambda_neg"), _NOT_NEGATIVE),
    ratios=("token",),
    zero_advantage_means_zero_gradient=True,
    weighs_itself=True,
)
SURROGATE_TARGET = Piece(
    "surrogate",
    "target",
    target.target,
    "−max(0, ±(log p* − lp_t)), p* = p_old^{good_exponent} (good) or p_old^{bad_exponent} (bad), fitted to sum ≤ 1",
    bounds={"good_exponent": Bounds(low=0, high=1), "bad_exponent": Bounds(low=1)},
    ratios=("none",),
    reduce="token_mean",
    why_no_kl="the surrogate 'target' says how far each probability should go: set beta to 0",
    settles=True,
)

KL_K1 = Piece("kl", "k1", kl.k1, "log(π/π_ref)")
KL_K2 = Piece("kl", "k2", kl.k2, "½·log(π/π_ref)²", takes_ratio=False)
KL_K3 = Piece("kl", "k3", kl.k3, "π_ref/π − log(π_ref/π) − 1")

REDUCE_SEQUENCE_MEAN = Piece("reduce", "sequence_mean", reduce.sequence_mean, "mean over completions of mean_t")
REDUCE_TOKEN_MEAN = Piece("reduce", "token_mean", reduce.token_mean, "Σ_t / tokens")
REDUCE_CONSTANT = Piece(
    "reduce",
    "constant",
    reduce.constant,
    "Σ_t / (completions · {length})",
    bounds={"length": Bounds(low=1)},
)
REDUCE_SEQUENCE_SUM = Piece("reduce", "sequence_sum", reduce.sequence_sum, "mean over completions of Σ_t")
REDUCE_PROMPT_MEAN = Piece("reduce", "prompt_mean", reduce.prompt_mean, "mean over prompts of the mean over tokens")

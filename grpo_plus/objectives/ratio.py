"""Importance ratios of a token or a completion: its probability now by that at sampling.

Every function takes a `TokenBatch` and returns (B, T), or (B, 1) for one ratio a completion. Ratios are
continued linearly above ``exp(_LARGEST)``, so that a completion far off-policy gives a huge number with a gradient
instead of ``inf``, and then NaN.
"""

# ruff: noqa: RUF001 - formulas

import torch
from torch import Tensor

from grpo_plus.objectives.batch import TokenBatch, row_mean
from grpo_plus.objectives.pieces import Piece

_LARGEST = 30.0


def bounded_exp(x: Tensor) -> Tensor:
    """``exp`` with its tangent beyond `_LARGEST`: never ``inf``, never flat."""
    return torch.exp(x.clamp(max=_LARGEST)) * (1 + (x - _LARGEST).clamp(min=0))


def token(batch: TokenBatch) -> Tensor:
    """One ratio a token, ρ_t.

    Use it when advantages differ from token to token, and as the rule: it is that of PPO and GRPO.

    Paper: PPO, arXiv:1707.06347.

    Degenerate case: before the first update on a batch every ratio is 1.
    """
    return bounded_exp(batch.log_ratio)


TOKEN = Piece("ratio", "token", token, "ρ_t = exp(lp_t − old_t)")


def sequence(batch: TokenBatch) -> Tensor:
    """One ratio a completion, the geometric mean of its token ratios.

    Use it when ratios of single tokens are noisy, as in mixtures of experts, and all tokens of a completion have one
    advantage. It stays near 1: clip it by thousandths.

    Paper: GSPO, arXiv:2507.18071.

    Degenerate case: a completion of one token has the token's ratio.
    """
    return bounded_exp(row_mean(batch.log_ratio, batch.mask))


SEQUENCE = Piece("ratio", "sequence", sequence, "s = exp(mean_t(lp_t − old_t))", per_completion=True, weighs_kl=True)


def sequence_token(batch: TokenBatch) -> Tensor:
    """The completion's ratio as the value, each token's own log-probability as the gradient: GSPO-token.

    Use it when advantages differ from token to token and the ratio should be that of ``sequence``.

    Paper: GSPO, arXiv:2507.18071, section 4.3.

    Degenerate case: with equal advantages in a completion the gradient is that of ``sequence``.
    """
    own = torch.where(batch.mask, batch.logps - batch.logps.detach(), 0.0)
    return sequence(batch).detach() * torch.exp(own)


SEQUENCE_TOKEN = Piece("ratio", "sequence_token", sequence_token, "s_t = sg[s]·exp(lp_t − sg[lp_t])")


def sequence_sum(batch: TokenBatch) -> Tensor:
    """One ratio a completion, the product of its token ratios: the unnormalised importance weight.

    Use it when completions are short and the weight of a completion has to be exact: that of a long one exceeds the
    bounds of a clip after a single step.

    Degenerate case: it grows and shrinks exponentially with the length; above e³⁰ it continues linearly.
    """
    return bounded_exp(batch.log_ratio.sum(-1, keepdim=True))


SEQUENCE_SUM = Piece("ratio", "sequence_sum", sequence_sum, "S = exp(Σ_t(lp_t − old_t))", per_completion=True)


def none(batch: TokenBatch) -> Tensor:
    """No ratio: for surrogates that read none.

    Use it when a surrogate has no importance weight (``logp``, ``target``); it is chosen with them.

    Config:
        objective: reinforce
    """
    return torch.ones_like(batch.logps)


NONE = Piece("ratio", "none", none, "1")

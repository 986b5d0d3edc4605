"""Estimates of the KL divergence to the reference policy, token by token, from the sampled token alone.

See Schulman, "Approximating KL divergence" (2020). Each takes (B, T) log-probabilities of the policy and of the
reference and returns (B, T).

The value of an estimate and its gradient are different. On-policy, with sampled prefixes, the expected gradient is:

- in the loss, times the ratio: that of E_π[estimate], of KL(π‖π_ref) for k1 and k3;
- in the loss without the ratio: for k2 that of KL(π‖π_ref), for k3 that of KL(π_ref‖π), a bias; for k1 it is 0;
- taken from the reward, as a number: for k1 that of KL(π‖π_ref), of full completions; k2 and k3 push away.

So the ratio multiplies k1 and k3 and never k2; the rest is refused (`pull`). Under the ratio of a sequence of T tokens
(`gspo`, `luspo`, as in TRL) the ratio's share of the gradient is one T-th of that of full completions: k1 keeps its
direction among completions of equal length, and k3 nears the biased gradient as completions grow.
"""

# ruff: noqa: RUF001 - formulas

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.ratio import bounded_exp

KLEstimator = Callable[[Tensor, Tensor], Tensor]


def k1(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """The log-ratio itself: unbiased as a value; its gradient without the ratio has mean zero.

    Use it when the KL term is taken from the reward (``placement: reward``): no other estimate is right there.

    Paper: Schulman, 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html.

    Degenerate case: single tokens may have a negative estimate. In the loss without the ratio it is refused.
    """
    return logps - ref_logps


K1 = Piece("kl", "k1", k1, "log(π/π_ref)")


def k2(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """Half the squared log-ratio: biased as a value; its gradient without the ratio is that of the reverse KL.

    Use it when the KL term is in the loss without a ratio: its expected gradient is right without one.

    Paper: Schulman, 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html.

    Degenerate case: far from the reference its value is no longer near the divergence. In the reward it is refused.
    """
    return 0.5 * (logps - ref_logps).square()


K2 = Piece("kl", "k2", k2, "½·log(π/π_ref)²", takes_ratio=False)


def k3(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """The estimate of GRPO: unbiased as a value and never negative; its gradient needs the ratio.

    Use it when the KL term is in the loss and its logged value should be low in variance: it is the default.

    Paper: Schulman, 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html; DeepSeekMath,
    arXiv:2402.03300.

    Degenerate case: where the reference is e³⁰ times likelier the exponential continues as its tangent: large, finite,
    with a gradient. In the reward it is refused.
    """
    log_ratio = ref_logps - logps
    return bounded_exp(log_ratio) - log_ratio - 1


K3 = Piece("kl", "k3", k3, "π_ref/π − log(π_ref/π) − 1")


def token_kl(estimator: KLEstimator, logps: Tensor, ref_logps: Tensor, mask: Tensor) -> Tensor:
    """(B, T) estimates; 0 without a gradient outside the mask, even for NaN."""
    inside = torch.where(mask, logps, 0.0)
    return torch.where(mask, estimator(inside, torch.where(mask, ref_logps, 0.0)), 0.0)


def pull(estimator: KLEstimator, *, in_reward: bool, times_ratio: bool) -> float:
    """Measure how well the expected update on an estimate lowers KL(π‖π_ref): the cosine with its steepest descent.

    Exact, over all tokens of some fixed policies as the sampling policies; returns the lowest cosine. Negative: the
    update pushes away from the reference. 0: it has no effect. The estimate is subtracted from the reward
    (``in_reward``), or a term of the loss that the ratio may multiply (``times_ratio``).

    Raises:
        ValueError: it does not give one finite number a token.
    """
    generator = torch.Generator().manual_seed(0)
    cosines = []
    for _ in range(20):
        logits, ref_logits = (torch.randn(6, 1, generator=generator, dtype=torch.float64) for _ in range(2))
        logps, ref_logps = logits.requires_grad_().log_softmax(0), ref_logits.log_softmax(0)
        estimate = estimator(logps, ref_logps)
        if not isinstance(estimate, Tensor) or estimate.shape != logps.shape or not bool(estimate.isfinite().all()):
            raise ValueError(f"it returned {estimate!r} for {len(logps)} tokens, expected a finite estimate of each.")
        term = logps * estimate.detach() if in_reward else estimate
        if times_ratio:
            term = term * torch.exp(logps - logps.detach())
        expected = (logps.detach().exp() * term + 0 * logps).sum()
        divergence = (logps.exp() * (logps - ref_logps)).sum()
        update, descent = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (expected, divergence))
        vanishes = update.norm() <= 1e-9 * descent.norm()
        cosines.append(0.0 if vanishes else float(torch.cosine_similarity(update, descent, dim=0)))
    return min(cosines)

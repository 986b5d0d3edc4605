"""Estimates of the KL divergence to the reference policy, token by token, from the sampled token alone.

See Schulman, "Approximating KL divergence" (2020). Each takes (B, T) log-probabilities of the policy and of the
reference and returns (B, T).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_plus.objectives.ratio import bounded_exp

KLEstimator = Callable[[Tensor, Tensor], Tensor]


def k1(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """log(π/π_ref): unbiased as a value, but its gradient alone has mean zero."""
    return logps - ref_logps


def k2(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """½·log(π/π_ref)²: biased as a value, its gradient is that of the reverse KL on-policy."""
    return 0.5 * (logps - ref_logps).square()


def k3(logps: Tensor, ref_logps: Tensor) -> Tensor:
    """π_ref/π − log(π_ref/π) − 1: unbiased as a value and never negative.

    Where the reference is e³⁰ times likelier the exponential goes on as its tangent: large, finite, with a gradient.
    """
    log_ratio = ref_logps - logps
    return bounded_exp(log_ratio) - log_ratio - 1


def token_kl(estimator: KLEstimator, logps: Tensor, ref_logps: Tensor, mask: Tensor) -> Tensor:
    """(B, T) estimates; 0 without a gradient where nothing is trained, whatever stands there."""
    inside = torch.where(mask, logps, 0.0)
    return torch.where(mask, estimator(inside, torch.where(mask, ref_logps, 0.0)), 0.0)

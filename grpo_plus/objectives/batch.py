"""Input and output of losses: small frozen dataclasses, no trainer, no logging.

Axes: B rows of a micro-batch, T completion tokens. A tensor of one column, (B, 1), holds one value a completion.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

SHARE = "share"
"""Key of a generation batch: the weight of each row, (B,) and at least 0; on every rank, or on none."""

COIN, KEEP = "coin", "coin_keep"
"""Two more keys: expected tokens of a row's group, (B,), if a coin decides its sampling, else 0; and the chance of the
coin."""


@dataclass(frozen=True)
class Counts:
    """The divisors of a loss: the average content of one rank's accumulation window.

    Never counts of the micro-batch, so that splitting a batch differently never changes the gradient.

    Attributes:
        completions: fully masked ones included.
        tokens: trainable tokens, or for `target` the sum of its node weights.
        prompts: distinct prompts; None if not counted.

    The tokens of a row with a share count times the share; completions and prompts are constants.
    """

    completions: Tensor | float
    tokens: Tensor | float
    prompts: Tensor | float | None = None


@dataclass(frozen=True)
class TokenBatch:
    """One micro-batch of scored completions.

    Attributes:
        logps: (B, T) log-probabilities of the policy, with gradient.
        old_logps: (B, T) those of the policy that sampled, detached.
        advantages: (B, T) or (B, 1).
        mask: (B, T) bool, the tokens that are trained.
        ref_logps: (B, T) those of the reference policy; None while `beta` is 0.
        beta: current coefficient of the KL term, after its schedule.
        weights: (B, T) or (B, 1) importance weights of another sampler (vLLM); None without one.
        keep: (B, T) or (B, 1), 0 for completions that are too far off-policy; None keeps all.
        focus: (B, T) bool, the tokens of the policy term; None for all trained ones. TRL's
            `top_entropy_quantile` takes the quantile of each micro-batch, so these depend on how a batch is split.
        prompt_tokens: (B,) trained tokens of all completions of the row's prompt; None if not counted.
        target_logps: (B, T) the log-probabilities that `target` aims at.
        target_sign: (B, T) 1 to pull up, -1 to push down, 0 for no target.
        target_weights: (B, T) one over the occurrences of the token's node.
        pull: (B,) derivative of a group's loss with respect to the row's log-probability (`group.py`).
        group_loss: (B,) the row's part of that loss.
        share: (B,) weight of each row, which multiplies all of its loss; None for 1.
    """

    logps: Tensor
    old_logps: Tensor
    advantages: Tensor
    mask: Tensor
    counts: Counts
    ref_logps: Tensor | None = None
    beta: float = 0.0
    weights: Tensor | None = None
    keep: Tensor | None = None
    focus: Tensor | None = None
    prompt_tokens: Tensor | None = None
    target_logps: Tensor | None = None
    target_sign: Tensor | None = None
    target_weights: Tensor | None = None
    pull: Tensor | None = None
    group_loss: Tensor | None = None
    share: Tensor | None = None
    max_completion_length: int | None = None

    @property
    def log_ratio(self) -> Tensor:
        """(B, T) log of the token ratio; exactly 0, and without gradient, outside the mask."""
        return torch.where(self.mask, self.logps - self.old_logps, 0.0)

    def shared(self, values: Tensor) -> Tensor:
        """(B, T) values times the share of their row."""
        return values if self.share is None else values * self.share.unsqueeze(1).to(values)


@dataclass(frozen=True)
class Metric:
    """One logged number before it is reduced over tokens and ranks.

    Attributes:
        values: (B, T) or (B, 1).
        how: ``mean`` over trained tokens (completions for one-column values), or the ``min`` or ``max`` over
            completions of their token means.
        where: (B, T) bool, the tokens that a mean counts; None for the trained ones.
    """

    values: Tensor
    how: Literal["mean", "min", "max"] = "mean"
    where: Tensor | None = None


@dataclass(frozen=True)
class Terms:
    """The output of a surrogate.

    Attributes:
        values: (B, T) or (B, 1), maximised.
        metrics: by logged name.
        settled: bool, tokens without a further pull (past their clip, at their target); None: not applicable.
        pulled: bool, the tokens whose settled share is counted.
    """

    values: Tensor
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    settled: Tensor | None = None
    pulled: Tensor | None = None


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """(B, 1) mean over the masked tokens of each row; 0 for a row without any."""
    total = torch.where(mask, values, 0.0).sum(-1, keepdim=True)
    return total / mask.sum(-1, keepdim=True).clamp(min=1)

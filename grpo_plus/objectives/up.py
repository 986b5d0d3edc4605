"""UP: no bound on the pull of good tokens, a clip for bad ones.

A token of a good completion gets A·log π, as in REINFORCE: no ratio, so neither its clip nor a small old probability
removes the signal of a rare right token. Any other token gets the clipped term of GRPO.

Use it when rare right tokens hardly rise, because of the clip and their small old probability.

Paper: UP, arXiv:2607.06987.

Deviation: A·log π instead of the paper's A·π/sg[π], whose gradient is the same (its value is A, so the losses logged
differ). Below 0 only the lower bound of a clip ever acts, so there is no upper one. ``dual`` is the floor in its
authors' code.

Assumes that an advantage above 0 means right. On a small model without a KL term entropy rises until training collapses
(observed by the authors of TRL's version); watch `entropy`.

Degenerate case: with one update a generation batch every ratio is 1, and the gradient is that of GRPO.
"""

# ruff: noqa: RUF001 - formulas

from typing import Annotated

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Terms, TokenBatch
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.surrogate import AtLeast0, clip, clip_metrics
from grpo_verifiers.options import Range


def up(
    batch: TokenBatch,
    ratio: Tensor,
    *,
    epsilon_low: AtLeast0 = 0.2,
    dual: Annotated[float, Range(1, open_low=True)] | None = None,
) -> Terms:
    """A·log π where A > 0, else max(ρ, 1 − ε_low)·A, which ``dual``·A bounds from below.

    Args:
        batch: the tokens.
        ratio: of each token or completion.
        epsilon_low: below 1 − ``epsilon_low`` a negative advantage stops pushing.
        dual: the floor ``dual·A`` for negative advantages.
    """
    clipped = clip(batch, ratio, epsilon_low=epsilon_low, epsilon_high=float("inf"), dual=dual)
    good = batch.advantages > 0
    values = torch.where(good, batch.advantages * torch.where(batch.mask, batch.logps, 0.0), clipped.values)
    past_low = (ratio < 1 - epsilon_low) & (batch.advantages < 0)
    assert clipped.settled is not None
    return Terms(
        values,
        clip_metrics(past_low, torch.zeros_like(past_low)),
        settled=clipped.settled & ~good,
        pulled=batch.advantages != 0,
    )


UP = Piece(
    "surrogate",
    "up",
    up,
    "A·lp_t where A > 0, else max(r, 1 − {epsilon_low})·A",
    zero_advantage_means_zero_gradient=True,
    settles=True,
    by_ratio=True,
)

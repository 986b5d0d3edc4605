"""FIPO: a token counts for more if the tokens after it are being reinforced.

GRPO gives all tokens of a completion one advantage. Here each is multiplied by an influence weight from the change of
policy since the sampling: F_t, the discounted sum of the log-ratios from the token to the end of the completion.
Tokens with a future that earlier updates made likelier get up to 1 + ``influence`` times the advantage. The rest is
DAPO's clip.

Use it when reasoning is long and a few tokens decide its course: those that led to the learned continuation count more.

Paper: FIPO, arXiv:2603.19835.

Deviation: the definition, with its authors' settings as in other ports: half-life of 32 tokens, weights in [1, 1.2],
clip 0.2 and 0.28, ``dual`` 10, and three guards: a token whose ratio is above ``dual`` takes no part in any F, one of a
bad completion whose ratio is above ``safety`` is never weighed up, and a bad completion with more than ``dual_most``
tokens above ``dual`` has no gradient. Its tokens still count in the divisor; the authors' do not.

Assumes several optimizer steps on each generation batch.

Degenerate case: before the first step every F_t is 0 and every weight 1: the gradient is DAPO's. The discount counts
all positions; tokens of tool results add 0 themselves.
"""

# ruff: noqa: RUF001 - formulas

import math
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Metric, Terms, TokenBatch
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.surrogate import AtLeast0, MoreThan0, clip
from grpo_verifiers.options import Range

_Above1 = Annotated[float, Range(1, open_low=True)]


def fipo(
    batch: TokenBatch,
    ratio: Tensor,
    *,
    half_life: Annotated[float, Range(0, open_low=True, finite=True)] = 32.0,
    influence: Annotated[float, Range(0, finite=True)] = 0.2,
    influence_low: Annotated[float, Range(0, 1, open_high=True)] = 0.0,
    epsilon_low: AtLeast0 = 0.2,
    epsilon_high: AtLeast0 | None = 0.28,
    dual: _Above1 | None = 10.0,
    safety: MoreThan0 | None = 4.0,
    dual_most: Annotated[int, Range(0)] | None = 1,
) -> Terms:
    """The clipped term of f_t·A, f_t = sg[clip(exp F_t, 1 − ``influence_low``, 1 + ``influence``)].

    F_t = Σ_{k≥t} γ^(k−t)·(lp_k − old_k), and γ = 2^(−1/``half_life``).

    Args:
        batch: the tokens.
        ratio: of each token.
        half_life: tokens ahead at which a log-ratio counts half.
        influence: a token counts up to 1 + ``influence`` times.
        influence_low: and down to 1 − ``influence_low`` times.
        epsilon_low: as in `clip`.
        epsilon_high: as in `clip`.
        dual: as in `clip`; tokens with a larger ratio are in no F.
        safety: a token of a bad completion with a larger ratio is never weighed up.
        dual_most: the most tokens with a ratio above ``dual`` in a bad completion; with more it has no gradient.
    """
    with torch.no_grad():
        moved = batch.log_ratio
        if dual is not None:
            moved = torch.where(moved > math.log(dual), 0.0, moved)
        future = discounted_ahead(moved, 2 ** (-1 / half_life))
        low, high = (math.log1p(x) for x in (-influence_low, influence))
        weight = future.clamp(low, high).exp()
        if safety is not None:
            runs_away = (batch.log_ratio > math.log(safety)) & (batch.advantages < 0)
            weight = torch.where(runs_away, weight.clamp(max=1), weight)
    weighed = replace(batch, advantages=weight * batch.advantages)
    terms = clip(weighed, ratio, epsilon_low=epsilon_low, epsilon_high=epsilon_high, dual=dual)
    if dual is not None and dual_most is not None:
        beyond = batch.mask & (batch.log_ratio.detach() > math.log(dual)) & (batch.advantages < 0)
        out = beyond.sum(-1, keepdim=True) > dual_most
        settled = None if terms.settled is None else terms.settled | out
        terms = replace(terms, values=torch.where(out, 0.0, terms.values), settled=settled)
    metrics = {**terms.metrics, "fipo/future": Metric(future), "fipo/influence": Metric(weight)}
    return replace(terms, metrics=metrics)


FIPO = Piece(
    "surrogate",
    "fipo",
    fipo,
    "min(ρ_t·f_t·A, clip(ρ_t, 1 − {epsilon_low}, 1 + {epsilon_high})·f_t·A), f_t = sg[clip(exp Σ_(k≥t) "
    "2^(−(k−t)/{half_life})·(lp_k − old_k), 1 − {influence_low}, 1 + {influence})]",
    ratios=("token",),
    zero_advantage_means_zero_gradient=True,
    settles=True,
    by_ratio=True,
)


def discounted_ahead(values_BT: Tensor, discount: float) -> Tensor:
    """(B, T) Σ_{k≥t} discount^(k−t)·v_k, in about log2(T) steps: each doubles the range of the sum.

    >>> discounted_ahead(torch.tensor([[1.0, 0.0, 4.0]]), 0.5)
    tensor([[2., 2., 4.]])
    """
    total, reach, width = values_BT, 1, values_BT.shape[1]
    while reach < width:
        ahead = torch.nn.functional.pad(total[:, reach:], (0, reach))
        total, reach = total + discount**reach * ahead, 2 * reach
    return total

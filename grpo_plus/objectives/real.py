"""REAL: rewards as labels; a group's completions are classified, right or wrong.

The logit of a completion is s_i, the mean over its tokens of log π/π_old. Right ones are to have a high one, wrong ones
a low one, each against an anchor at 0: L = log(1 + Σ_right e^(−s_i/τ)) + log(1 + Σ_wrong e^(s_i/τ)). The weight of a
completion is bounded by 1/τ, grows on the wrong side of the anchor, and fades on the right one.

Use it when rewards are right or wrong and the size of an advantage should not matter: the pull on a completion is
bounded in any group.

Paper: REAL, arXiv:2602.05630; checked against its authors' description and formula.

Deviation: labels are the signs of the advantages here, since only those
reach an objective: in a group with contrast they are the paper's for rewards of 0 and 1, with any estimator. An
advantage of 0 is no label, so that a group of all right completions, whose advantages are 0, is not pushed down. With
``advantage: raw`` and ``at_zero: wrong`` the labels are those of the rewards, in groups without contrast too; a
completion without any reward then counts as wrong.

Assumes that rewards are right or wrong. Differences in reward beyond that have no effect.

Degenerate case: on the first update of a generation batch all s_i are 0, and each of n right ones weighs 1/(τ(1 + n)).
"""

# ruff: noqa: RUF001 - formulas

from typing import Literal

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Terms, TokenBatch
from grpo_plus.objectives.group import GroupScores, Pulls, pulled
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.surrogate import MoreThan0

AtZero = Literal["none", "wrong"]


def real(
    batch: TokenBatch,
    ratio: Tensor,  # noqa: ARG001 - the signature of every surrogate
    *,
    tau: MoreThan0 = 0.5,  # noqa: ARG001 - read by `real_pulls`
    at_zero: AtZero = "none",  # noqa: ARG001 - same
) -> Terms:
    """−log(1 + Σ_right e^(−s_i/τ)) − log(1 + Σ_wrong e^(s_i/τ)) of the group.

    Args:
        batch: the tokens.
        ratio: not read.
        tau: temperature: smaller pulls harder on completions on the wrong side.
        at_zero: the label of an advantage of 0: ``none``, no label, or ``wrong``.
    """
    return pulled(batch, "real")


def real_pulls(scores: GroupScores, *, tau: float = 0.5, at_zero: AtZero = "none") -> Pulls:
    """Return ∓σ/τ for a completion's share σ of the sum under its logarithm, spread over its tokens."""
    lengths_N = scores.lengths.clamp(min=1)
    logits_N = (scores.logps - scores.old_logps) / lengths_N
    right_N = scores.present & (scores.advantages > 0)
    wrong_N = scores.present & (scores.advantages <= 0 if at_zero == "wrong" else scores.advantages < 0)
    pull_N, loss_N = torch.zeros_like(logits_N), torch.zeros_like(logits_N)
    for which_N, sign in ((right_N, -1.0), (wrong_N, 1.0)):
        signed_N = sign * logits_N / tau
        anchored = torch.logaddexp(torch.zeros_like(signed_N), scores.log_total(signed_N, which_N))
        pull_N = torch.where(which_N, sign * (signed_N - anchored).exp() / tau / lengths_N, pull_N)
        loss_N = loss_N + anchored
    sums = [scores.total(logits_N, which_N) for which_N in (right_N, wrong_N)]
    counts = [scores.total(torch.ones_like(logits_N), which_N).clamp(min=1) for which_N in (right_N, wrong_N)]
    return Pulls(pull_N, loss_N, {"real/margin": sums[0] / counts[0] - sums[1] / counts[1]})


REAL = Piece(
    "surrogate",
    "real",
    real,
    "−log(1 + Σ_(A > 0) e^(−s_i/{tau})) − log(1 + Σ_(A < 0) e^(s_i/{tau})) over the group, s_i = mean_t(lp_t − old_t)",
    ratios=("none",),
    reduce="sequence_sum",
    per_completion=True,
    pulls=real_pulls,
)

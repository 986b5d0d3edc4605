"""TPO: a target distribution over the completions of a group, and cross-entropy to it.

Policy gradients combine direction and speed of the change of each completion. Here the direction is a target
distribution over the group, q_i ∝ p_old,i·exp(A_i/η), and the policy, normalised over the group, is fitted to it. The
gradient on the completion's log-probability is p_i − q_i: it ends at the target. `target` does the same for single
tokens.

Use it when the change of a group should be explicit, and several optimizer steps are taken on each generation batch:
the pull ends at the target.

Paper: TPO, arXiv:2604.06159, equations 1 to 3 and appendix A.

Its scores are rewards standardised in the group by the population's deviation: ``advantage: zscore`` with ``ddof: 0``
and ``eps: 0``. Any other estimator per completion is allowed. The paper sums log-probabilities over the completion.
Long completions differ by many nats, and p_old is then nearly all on one of them, which leaves little to move
(`tpo/candidates` near 1): ``score: mean`` takes the mean over tokens instead, an addition to the paper.

Assumes that probability should move between the group's candidates.

Degenerate case: a group without contrast has q = p_old, without a pull on the first update of a generation batch and
with one back to p_old on later ones, as in the paper; so completions of advantage 0 are no waste. A group of one has no
pull.
"""

from typing import Literal

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Terms, TokenBatch
from grpo_plus.objectives.group import GroupScores, Pulls, pulled
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.surrogate import MoreThan0

Score = Literal["sum", "mean"]


def tpo(
    batch: TokenBatch,
    ratio: Tensor,  # noqa: ARG001 - the signature of every surrogate
    *,
    eta: MoreThan0 = 1.0,  # noqa: ARG001 - read by `tpo_pulls`
    score: Score = "sum",  # noqa: ARG001 - same
) -> Terms:
    """Σ_i q_i·log p_i of the group.

    Args:
        batch: the tokens.
        ratio: not read.
        eta: temperature of the target: smaller moves further.
        score: ``sum`` of a completion's log-probabilities, or their ``mean``.
    """
    return pulled(batch, "tpo")


def tpo_pulls(scores: GroupScores, *, eta: float = 1.0, score: Score = "sum") -> Pulls:
    """Return p_i − q_i, and the cross-entropy −Σ q_i·log p_i."""
    per_N = scores.lengths.clamp(min=1) if score == "mean" else torch.ones_like(scores.lengths)
    log_p, log_old = (scores.log_softmax(values_N / per_N) for values_N in (scores.logps, scores.old_logps))
    tilt = scores.advantages / eta
    tilted = scores.total((tilt != 0).to(tilt), scores.present) > 0
    log_q = torch.where(tilted, scores.log_softmax(log_old + tilt), log_old)
    p, q = log_p.exp(), log_q.exp()
    cross = -scores.total(q * log_p, scores.present)
    entropy = -scores.total(log_old.exp() * log_old, scores.present)
    distance = cross + scores.total(q * log_q, scores.present)
    return Pulls((p - q) / per_N, cross, {"tpo/distance": distance, "tpo/candidates": entropy.exp()})


TPO = Piece(
    "surrogate",
    "tpo",
    tpo,
    "Σ_i q_i·log p_i over the group, p_i ∝ exp({score}_t lp_t), q_i ∝ p_old,i·exp(A_i/{eta})",
    ratios=("none",),
    reduce="sequence_sum",
    per_completion=True,
    pulls=tpo_pulls,
)

"""Unbiased for the gradient of E[best of k]: pass@k policy optimisation with a leave-one-out baseline.

A completion's advantage is the mean best reward of the k-subsets with it, less that of the k-subsets without it;
k times the group's mean of A · ∇log π then has expectation ∇E[best of k]. No subset is visited: among n sorted
rewards, the gap between ranks j − 1 and j adds gap · C(j, k) / C(n − 1, k) to those above it and takes
gap · C(j − 1, k − 1) / C(n − 1, k − 1) · (n − j) / (n − k) from those below.

Use it when several attempts are allowed at test time and the best one counts, or to preserve the diversity of an
overconfident policy.

Paper: PKPO, arXiv:2505.15201.

Assumes k attempts of which the best counts; k = 1 is ``rloo``.

Degenerate case: subsets without a completion need k ≤ n − 1, which the config check enforces. If no reward applies to
some members of a group, k is at most n − 1; a group of one gets 0.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.table import RewardTable
from grpo_verifiers.options import Range

K = 4
_ATTEMPTS = Range(1, text="a finite number of at least 1, and an integer")


def passk(table: RewardTable, *, k: Annotated[int, _ATTEMPTS] = K) -> Tensor:
    """Mean of max R over the k-subsets with the completion − mean over those without it.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("passk", RewardTable.of([1, 0, 0, 0]), k=2)
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])

    Args:
        table: the rewards.
        k: the attempts of which the best counts, at most one less than the completions of a prompt.
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups = Groups.of(table.groups)
    sorted_GM, order_GM = groups.grid(totals_N, scorable_N, torch.inf).sort(dim=1, stable=True)
    size_G1 = groups.size(totals_N, scorable_N)[:, None]
    k_G1 = (size_G1 - 1).clamp(min=1, max=k)
    rank_M = torch.arange(groups.width, device=totals_N.device, dtype=totals_N.dtype)
    gap_GM = sorted_GM.diff(dim=1, prepend=sorted_GM[:, :1])
    gap_GM = torch.where(rank_M < size_G1, gap_GM, 0.0)  # unscorable members are sorted to the end
    above_GM = torch.nn.functional.pad(_all_below(rank_M, size_G1, k_G1)[:, 1:], (0, 1), value=1.0)
    below_GM = _all_below(rank_M, size_G1, k_G1 - 1) * (size_G1 - rank_M) / (size_G1 - k_G1).clamp(min=1)
    gained_GM = (gap_GM * above_GM).cumsum(dim=1)
    lost_GM = torch.nn.functional.pad((gap_GM * below_GM)[:, 1:].flip(1).cumsum(dim=1).flip(1), (0, 1))
    return torch.empty_like(sorted_GM).scatter(1, order_GM, gained_GM - lost_GM)[groups.index, groups.slot]


def _all_below(rank_M: Tensor, size_G1: Tensor, k_G1: Tensor) -> Tensor:
    """C(j − 1, k) / C(n − 1, k) for rank j: the share of k-subsets of n − 1 that lie in the lowest j − 1.

    As a product of (t − k) / t for t from j to n − 1: no binomial that overflows, no difference that cancels.
    """
    factor_GM = torch.where(rank_M < size_G1, (rank_M - k_G1).clamp(min=0) / rank_M.clamp(min=1), 1.0)
    return factor_GM.flip(1).cumprod(dim=1).flip(1)


def check_size(keywords: Mapping[str, Any], completions: int) -> str | None:
    """Return the problem of this number of completions a prompt, if any."""
    k = keywords.get("k", K)
    if k < completions:
        return None
    most = f"k to at most {completions - 1}, or " if completions > 1 else ""
    return (
        f"its k is {k} and compares {k} completions with and without another one of the prompt, which takes {k + 1}. "
        f"Set {most}num_generations to at least {k + 1}"
    )


ESTIMATOR = Estimator("passk", passk, check_size=check_size)

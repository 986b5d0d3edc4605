"""A reward model's scores: their ranking accuracy, and their conversion to rewards on the scale of verifiers.

In the accuracy a tie counts half, which makes it the area under the ROC curve: random scores have one half, and so have
constant scores, which strict counting calls always wrong. NaN scores are never in order. A Bradley–Terry score has no
zero, and its level differs between prompts, so a score has a meaning only relative to completions of the same prompt.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def ranked_right(chosen_Q: Tensor, rejected_Q: Tensor) -> Tensor:
    """Return 1 for each pair whose chosen side scores higher, ½ for a tie, 0 otherwise.

    >>> ranked_right(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]))
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    return ((chosen_Q > rejected_Q).double() + (chosen_Q >= rejected_Q).double()) / 2


def separation(scores: Tensor, labels: Tensor) -> float:
    """Return the ranking accuracy over all pairs of a good (label 1) and a bad (0) score, the area under the ROC curve.

    >>> separation(torch.tensor([3.0, 2.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0, 1.0]))
    0.875

    NaN labels are ignored. At least one label must be good and one bad.
    """
    good, bad = scores[labels == 1].double(), scores[labels == 0].double()
    ordered = bad.sort().values
    below = torch.searchsorted(ordered, good, right=False)
    up_to = torch.searchsorted(ordered, good, right=True)
    return float((below + up_to).double().sum() / (2 * len(good) * len(bad)))


def wins(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return the mean probability σ(s_i − s_j) of a win against the rest of the group; ½ in a group of one.

    >>> wins(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0, 0, 1])).tolist()
    [0.5, 0.5, 0.5]

    The result is in [0, 1], ½ on average over a group, and invariant to a shift of all scores of a prompt.
    """
    rivals_NN = groups_N[:, None] == groups_N[None, :]
    rivals_NN.fill_diagonal_(fill_value=False)
    chance_NN = (
        (scores_N[:, None] - scores_N[None, :])
        .sigmoid()
        .where(rivals_NN, torch.zeros((), dtype=scores_N.dtype, device=scores_N.device))
    )
    count_N = rivals_NN.sum(dim=1)
    return torch.where(count_N > 0, chance_NN.sum(dim=1) / count_N.clamp(min=1), 0.5)


def rewards_of(scores_N: Tensor, groups_N: Tensor, scale: str) -> Tensor:
    """Return the rewards of scores; ``scale`` is ``wins``, ``sigmoid`` or ``raw``."""
    if scale == "wins":
        return wins(scores_N, groups_N)
    return scores_N.sigmoid() if scale == "sigmoid" else scores_N


def worst_step(scores: Sequence[Tensor]) -> Tensor:
    """Return the lowest probability of a good step in each completion; ½ without steps.

    >>> worst_step([torch.tensor([0.0, 2.0]), torch.tensor([])]).tolist()
    [0.5, 0.5]
    """
    return torch.stack([one.sigmoid().min() if len(one) else one.new_tensor(0.5) for one in scores])

"""Conversion of a reward model's scores to rewards on the scale of verifiers.

A Bradley–Terry score has no zero, and its level differs between prompts, which training never compares. So a score has
a meaning only relative to completions of the same prompt.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


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

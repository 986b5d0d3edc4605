"""From scores of a reward model to rewards beside those of rules.

A Bradley–Terry score has no zero, and its level is another one for every prompt: training never compares prompts. So
what is known about a completion is how it stands among those of its own prompt.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def wins(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    """The mean chance σ(s_i − s_j) to be preferred over each of the others of the group; ½ for one that is alone.

    >>> wins(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0, 0, 1])).tolist()
    [0.5, 0.5, 0.5]

    Within [0, 1], ½ on average over a group, and the same whatever is added to all scores of a prompt.
    """
    others_NN = groups_N[:, None] == groups_N[None, :]
    others_NN.fill_diagonal_(fill_value=False)
    chance_NN = (
        (scores_N[:, None] - scores_N[None, :])
        .sigmoid()
        .where(others_NN, torch.zeros((), dtype=scores_N.dtype, device=scores_N.device))
    )
    count_N = others_NN.sum(dim=1)
    return torch.where(count_N > 0, chance_NN.sum(dim=1) / count_N.clamp(min=1), 0.5)


def rewards_of(scores_N: Tensor, groups_N: Tensor, scale: str) -> Tensor:
    """The rewards of scores: ``wins``, ``sigmoid`` or ``raw``."""
    if scale == "wins":
        return wins(scores_N, groups_N)
    return scores_N.sigmoid() if scale == "sigmoid" else scores_N


def worst_step(scores: Sequence[Tensor]) -> Tensor:
    """The lowest chance of a step of each completion to be good; ½ where it has no step.

    >>> worst_step([torch.tensor([0.0, 2.0]), torch.tensor([])]).tolist()
    [0.5, 0.5]
    """
    return torch.stack([one.sigmoid().min() if len(one) else one.new_tensor(0.5) for one in scores])

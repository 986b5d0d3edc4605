"""Which groups teach anything: those with an advantage other than 0, whatever the estimator reads."""

from torch import Tensor


def live_groups(advantages: Tensor, num_generations: int) -> list[bool]:
    """One answer a group; (N,) or (N, T) advantages, the completions of a group in a row.

    >>> import torch
    >>> live_groups(torch.tensor([0.5, -0.5, 0.0, 0.0]), 2)
    [True, False]
    """
    found: list[bool] = (advantages != 0).reshape(len(advantages) // num_generations, -1).any(dim=1).tolist()
    return found

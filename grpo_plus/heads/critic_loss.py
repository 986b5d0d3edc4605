"""The value loss of PPO, and the explained variance of the returns.

½·max((V − R)², (clip(V, V_old ± ε) − R)²) a token (Schulman et al., arXiv:1707.06347, and its reference code): a value
that has moved more than ε towards R has no gradient. Unclipped: ½·(V − R)².
"""

import torch
from torch import Tensor


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return the loss of each token, and the mask of tokens without gradient because of the clip.

    >>> one = torch.tensor
    >>> value_loss(one([0.9, 0.1]), one([1.0, 1.0]), one([0.5, 0.0]), clip=0.2)
    (tensor([0.0450, 0.4050]), tensor([ True, False]))
    """
    error = (values - returns).square()
    if clip is None:
        return 0.5 * error, torch.zeros_like(error, dtype=torch.bool)
    near = (old_values + (values - old_values).clamp(-clip, clip) - returns).square()
    outside = (values - old_values).abs() > clip  # inside, the two differ by rounding only
    return 0.5 * torch.where(outside, torch.maximum(error, near), error), outside & (near > error)


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """Return 1 − Var(R − V) / Var(R) over all tokens; None for constant returns.

    >>> explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
    0.75
    """
    returns, values = returns.double(), values.double()
    if len(returns) < 2 or float(spread := returns.var()) <= 1e-12:
        return None
    return float(1 - (returns - values).var() / spread)

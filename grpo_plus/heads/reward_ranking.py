"""Ranking accuracy of scores; a tie counts half.

With half ties it is the area under the ROC curve: random scores have one half, and so have constant scores, which
strict counting calls always wrong. NaN scores are never in order.
"""

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

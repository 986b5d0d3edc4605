"""How well scores order what they are to order: ranking accuracy, ties counted half.

Counting a tie half makes it the area under the ROC curve: a model that says nothing has exactly one half, and so has
one whose scores are all equal, which strict counting calls always wrong. Scores that are not numbers order nothing.
"""

import torch
from torch import Tensor


def ranked_right(chosen_Q: Tensor, rejected_Q: Tensor) -> Tensor:
    """1 for each pair whose chosen side scores higher, ½ for a tie, 0 otherwise.

    >>> ranked_right(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]))
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    return ((chosen_Q > rejected_Q).double() + (chosen_Q >= rejected_Q).double()) / 2


def separation(scores: Tensor, labels: Tensor) -> float:
    """The ranking accuracy over all pairs of a good one (label 1) and a bad one (0): the area under the ROC curve.

    >>> separation(torch.tensor([3.0, 2.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0, 1.0]))
    0.875

    NaN labels count as none. There must be a good and a bad one.
    """
    good, bad = scores[labels == 1].double(), scores[labels == 0].double()
    ordered = bad.sort().values
    below = torch.searchsorted(ordered, good, right=False)
    up_to = torch.searchsorted(ordered, good, right=True)
    return float((below + up_to).double().sum() / (2 * len(good) * len(bad)))

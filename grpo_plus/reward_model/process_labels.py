"""The loss of a process reward model: binary cross-entropy at the ends of steps (arXiv:2305.20050, arXiv:2312.08935).

A step's label is 1 (good), 0 (bad) or NaN (nobody judged it): only judged ends count, every other token is free. The
logit stands at the last token of a step, where the model has read it whole. A logit of 0 costs ln 2.
"""

import torch
from torch import Tensor


def process_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy where there is a label, exactly 0 (and no gradient) elsewhere; shapes as they come.

    >>> process_losses(torch.tensor([0.0, 2.0, 5.0]), torch.tensor([1.0, 0.0, float("nan")]))
    tensor([0.6931, 2.1269, 0.0000])
    """
    told = ~labels.isnan()
    # Both sides are replaced: what stands where nobody looks may be anything, and NaN times 0 is NaN.
    logits, labels = torch.where(told, logits, 0.0), torch.where(told, labels.to(logits.dtype), 0.0)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return torch.where(told, losses, 0.0)

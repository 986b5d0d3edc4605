"""The loss of a process reward model: binary cross-entropy at the ends of steps (arXiv:2305.20050, arXiv:2312.08935).

A step's label is 1 (good), 0 (bad) or NaN (nobody judged it): only judged ends count, every other token is free. The
logit stands at the last token of a step, where the model has read it whole. A logit of 0 costs ln 2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def label_grid(ends: Sequence[Sequence[int]], labels: Sequence[Sequence[float]], width: int) -> Tensor:
    """(B, T) labels with each row's labels at the (row, position) of its steps' ends, NaN elsewhere.

    >>> label_grid([[1, 3]], [[1.0, 0.0]], width=5)
    tensor([[nan, 1., nan, 0., nan]])

    Raises:
        ValueError: a row has another number of labels than of steps, a label is not 0, 1 or NaN, or a step ends
            outside the row.
    """
    grid = torch.full((len(ends), width), float("nan"))
    for row, (at, told) in enumerate(zip(ends, labels, strict=True)):
        if len(at) != len(told):
            raise ValueError(f"row {row} has {len(at)} steps and {len(told)} labels.")
        for position, label in zip(at, told, strict=True):
            if label not in (0, 1) and label == label:  # noqa: PLR0124 - NaN is the one value that differs from itself
                raise ValueError(f"row {row} has the label {label}, expected 0, 1, or NaN for none.")
            if not 0 <= position < width:
                raise ValueError(f"row {row} has a step that ends at position {position} of {width}.")
            grid[row, position] = label
    return grid


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


def labelled(labels: Tensor) -> Tensor:
    """How many labels there are: the divisor of the mean over steps."""
    return (~labels.isnan()).sum()

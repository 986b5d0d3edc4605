"""The Bradley–Terry loss of preferences (Bradley and Terry 1952; Ouyang et al., arXiv:2203.02155, equation 1).

Assumes that the chance of preferring one completion over another is σ of the difference of their scores, so only
differences within a pair are learned: the level of the scores is free, and differs from prompt to prompt. With a margin
(Touvron et al., arXiv:2307.09288, equation 2) the better one is to win by that much. Pairs that are told apart for
certain are pushed further apart without end, ever more slowly; equal scores cost ln 2.
"""

import torch
from torch import Tensor


def bradley_terry(chosen_Q: Tensor, rejected_Q: Tensor, margin_Q: Tensor | None = None) -> Tensor:
    """−log σ(s_chosen − s_rejected − margin) of each pair, finite for any finite scores.

    >>> bradley_terry(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0]))
    tensor([0.6931, 0.1269])

    Raises:
        ValueError: the tensors differ in shape.
    """
    same = (chosen_Q.shape, rejected_Q.shape, chosen_Q.shape if margin_Q is None else margin_Q.shape)
    if len(set(same)) > 1:
        shapes = ", ".join(str(tuple(shape)) for shape in same)
        raise ValueError(f"scores of pairs must have one shape, got {shapes}.")
    difference_Q = chosen_Q - rejected_Q
    return -torch.nn.functional.logsigmoid(difference_Q if margin_Q is None else difference_Q - margin_Q)


def weighted_mean(losses: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of unreduced losses, or Σ w·loss / Σ w; 0 where the weights sum to 0."""
    if weights is None:
        return losses.mean()
    total = weights.sum()
    return (losses * weights).sum() / torch.where(total == 0, torch.ones_like(total), total)

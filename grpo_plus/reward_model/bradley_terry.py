"""The Bradley–Terry loss of preferences (Bradley and Terry 1952; Ouyang et al., arXiv:2203.02155, equation 1).

Assumes that the chance of preferring one completion over another is σ of the difference of their scores, so only
differences within a pair are learned: the level of the scores is free, and differs from prompt to prompt. Pairs that
are told apart for certain are pushed further apart without end, ever more slowly; equal scores cost ln 2.
"""

import torch
from torch import Tensor


def bradley_terry(chosen_Q: Tensor, rejected_Q: Tensor) -> Tensor:
    """−log σ(s_chosen − s_rejected) of each pair, finite for any finite scores.

    >>> bradley_terry(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 0.0]))
    tensor([0.6931, 0.1269])

    Raises:
        ValueError: the tensors differ in shape.
    """
    if chosen_Q.shape != rejected_Q.shape:
        shapes = f"{tuple(chosen_Q.shape)}, {tuple(rejected_Q.shape)}"
        raise ValueError(f"scores of pairs must have one shape, got {shapes}.")
    return -torch.nn.functional.logsigmoid(chosen_Q - rejected_Q)

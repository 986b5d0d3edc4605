"""The losses of reward models: Bradley and Terry's of preferences, and that of process reward models.

Bradley–Terry (Bradley, Terry 1952; Ouyang et al., arXiv:2203.02155, equation 1) assumes that the chance of preferring
one completion over another is σ of the difference of their scores, so only differences within a pair are learned: the
level of the scores is free, and differs from prompt to prompt. Pairs that are told apart for certain are pushed further
apart without end, ever more slowly; equal scores cost ln 2.

A process reward model has binary cross-entropy at the ends of steps (arXiv:2305.20050, arXiv:2312.08935). A label is
1 (good), 0 (bad) or NaN (nobody judged it): only judged ends count, every other token is free. The logit stands at
the last token of a step, where the model has read it whole. A logit of 0 costs ln 2.
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

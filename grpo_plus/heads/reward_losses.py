"""The losses of reward models: Bradley–Terry for preferences, binary cross-entropy for the labels of steps.

Bradley–Terry (Bradley, Terry 1952; Ouyang et al., arXiv:2203.02155, equation 1) assumes that the probability of
preferring one completion over another is σ of the difference of their scores, so only differences in a pair are
learned: the level of the scores is free, and differs from prompt to prompt. Separable pairs are pushed further without
limit, more and more slowly; equal scores cost ln 2.

A process reward model has binary cross-entropy at the ends of steps (arXiv:2305.20050, arXiv:2312.08935). A label is
1 (good), 0 (bad) or NaN (not judged): only judged ends count, all other tokens are free. The logit is at the last token
of a step, after which the model has read the complete step. A logit of 0 costs ln 2.
"""

import torch
from torch import Tensor


def bradley_terry(chosen_Q: Tensor, rejected_Q: Tensor) -> Tensor:
    """Return −log σ(s_chosen − s_rejected) of each pair, finite for any finite scores.

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
    """Return the binary cross-entropy of each label; exactly 0, without gradient, for NaN labels. Any shape.

    >>> process_losses(torch.tensor([0.0, 2.0, 5.0]), torch.tensor([1.0, 0.0, float("nan")]))
    tensor([0.6931, 2.1269, 0.0000])
    """
    labelled = ~labels.isnan()
    # Both sides are replaced: unlabelled logits may be NaN, and NaN times 0 is NaN.
    logits, labels = torch.where(labelled, logits, 0.0), torch.where(labelled, labels.to(logits.dtype), 0.0)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return torch.where(labelled, losses, 0.0)

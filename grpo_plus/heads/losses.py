"""The losses of reward models and of critics, unreduced, and the explained variance of a critic's returns.

Bradley–Terry (Bradley, Terry 1952; Ouyang et al., arXiv:2203.02155, equation 1) assumes that the probability of
preferring one completion over another is σ of the difference of their scores, so only differences in a pair are
learned: the level of the scores is free, and differs from prompt to prompt. Separable pairs are pushed further without
limit, more and more slowly; equal scores cost ln 2.

A process reward model has binary cross-entropy at the ends of steps (arXiv:2305.20050, arXiv:2312.08935). A label is
1 (good), 0 (bad) or NaN (not judged): only judged ends count, all other tokens are free. The logit is at the last token
of a step, after which the model has read the complete step. A logit of 0 costs ln 2.

The value loss of PPO is ½·max((V − R)², (clip(V, V_old ± ε) − R)²) a token (Schulman et al., arXiv:1707.06347, and its
reference code): a value that has moved more than ε towards R has no gradient. Unclipped: ½·(V − R)².
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

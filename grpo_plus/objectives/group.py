"""Losses of a group, as a pull on each of its completions.

The loss L of a group is a function of the current log-probabilities of all its completions, which no micro-batch has
together: they may be in several, and on several ranks. Its gradient is a sum over completions, ∂L/∂ℓ_i·∇ℓ_i, and the
factors ∂L/∂ℓ_i are numbers. So they are computed first, without gradient, under the weights before the optimizer step;
a micro-batch then pulls on its own rows. The gradient is exactly that of L, however a batch is split.

A generation batch is sampled with the weights of its first step, which uses its log-probabilities. Each later step on
it costs one more pass over the generation batch, without gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Terms, TokenBatch


@dataclass(frozen=True)
class GroupScores:
    """All completions of a generation batch, of all ranks, in any order.

    >>> from grpo_plus.objectives import build_objective
    >>> two = torch.tensor([-3.0, -3.0])
    >>> scores = GroupScores(torch.tensor([0, 0]), two, two, torch.tensor([5, 5]), torch.tensor([1.0, -1.0]))
    >>> pull, loss, _ = build_objective("tpo", beta=0.0).pulls(scores)
    >>> [round(value, 3) for value in (pull / 2).tolist()]  # times the size of the group: p - q
    [-0.381, 0.381]

    Attributes:
        groups: (N,) numbers, equal in a group.
        logps: (N,) current log-probability of the completion: the sum over its trained tokens.
        old_logps: (N,) the same under the sampling policy.
        lengths: (N,) trained tokens; a completion without any is ignored.
        advantages: (N,)
    """

    groups: Tensor
    logps: Tensor
    old_logps: Tensor
    lengths: Tensor
    advantages: Tensor

    @property
    def present(self) -> Tensor:
        """(N,) bool, the completions with trained tokens."""
        return self.lengths > 0

    @property
    def index(self) -> Tensor:
        """(N,) numbers of the groups, counted from 0."""
        numbers: Tensor = torch.unique(self.groups, return_inverse=True)[1]
        return numbers

    def total(self, values_N: Tensor, which_N: Tensor) -> Tensor:
        """(N,) for each completion the sum over the completions of its group in ``which_N``."""
        index_N = self.index
        sums = values_N.new_zeros(len(values_N)).index_add_(0, index_N, torch.where(which_N, values_N, 0.0))
        return sums[index_N]

    def log_total(self, logs_N: Tensor, which_N: Tensor) -> Tensor:
        """(N,) log Σ exp over the completions of the group in ``which_N``; -inf without any."""
        index_N = self.index
        logs_N = torch.where(which_N, logs_N, -torch.inf)
        highest = torch.full_like(logs_N, -torch.inf).scatter_reduce(0, index_N, logs_N, "amax")[index_N]
        shift_N = highest.nan_to_num(neginf=0.0)
        return shift_N + self.total((logs_N - shift_N).exp(), which_N).log()

    def log_softmax(self, logs_N: Tensor) -> Tensor:
        """(N,) log-probabilities in the group, over completions with trained tokens; 0 for the rest."""
        return torch.where(self.present, logs_N - self.log_total(logs_N, self.present), 0.0)


@dataclass(frozen=True)
class Pulls:
    """A loss of groups, split by completion.

    Attributes:
        pull: (N,) its derivative with respect to the completion's log-probability; 0 without trained tokens.
        loss: (N,) the loss of the completion's group.
        metrics: (N,) values by the logged name of their mean over groups.
    """

    pull: Tensor
    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


def row_pulls(scores: GroupScores, pulls: Callable[[GroupScores], Pulls]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return by completion its pull and its part of the loss, both times the size of its group; and the metrics' means.

    A mean over completions of these is a mean over groups. All is computed in float64.
    """
    values = (scores.logps.double(), scores.old_logps.double(), scores.advantages.double())
    scores = GroupScores(scores.groups, values[0], values[1], scores.lengths.double(), values[2])
    output, present_N = pulls(scores), scores.present
    ones = torch.ones_like(scores.logps)
    size_N, members_N = scores.total(ones, torch.ones_like(present_N)), scores.total(ones, present_N)
    part_N = torch.where(present_N, size_N / members_N.clamp(min=1), 0.0)
    weight_N = torch.where(present_N, 1 / members_N.clamp(min=1), 0.0)  # one a group, over its members
    means = {name: (weight_N * value).sum() / weight_N.sum() for name, value in output.metrics.items()}
    pull_N = torch.where(present_N, size_N * output.pull, 0.0)
    return pull_N, torch.where(present_N, part_N * output.loss, 0.0), means


def pulled(batch: TokenBatch, name: str) -> Terms:
    """−loss of the group, with the gradient of a pull on the completion's log-probability; (B, T) values.

    To be summed over tokens, with an even share of the loss for each.
    """
    if batch.pull is None or batch.group_loss is None:
        raise ValueError(
            f"the surrogate {name!r} needs pull and group_loss, which this batch lacks: the trainer that computes the "
            "loss computes them from all completions of a group."
        )
    moving = torch.where(batch.mask, batch.logps - batch.logps.detach(), 0.0)
    share = batch.group_loss.unsqueeze(1) / batch.mask.sum(-1, keepdim=True).clamp(min=1)
    return Terms(-(batch.pull.unsqueeze(1) * moving + share))

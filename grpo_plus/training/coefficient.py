"""Coefficients that move during training: that of the KL term, and that of the entropy bonus."""

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_plus.objectives.schedule import Adaptive, Constant, Schedule


class KLCoefficient:
    """The coefficient of the KL term under its schedule.

    An adaptive one follows the KL measured over each optimizer step, all ranks together: ``total`` sums a tensor over
    them.
    """

    def __init__(self, beta: float, schedule: Schedule, total: Callable[[Tensor], Tensor]) -> None:
        self.beta = beta
        self.schedule = schedule
        self._total = total
        self._measured: Tensor | None = None

    @property
    def adapts(self) -> bool:
        """It follows the measured KL, so it has state."""
        return isinstance(self.schedule, Adaptive)

    @property
    def moves(self) -> bool:
        """Its schedule is not constant, so it is logged."""
        return not isinstance(self.schedule, Constant)

    def now(self, step: int) -> float:
        """The coefficient after ``step`` optimizer steps."""
        return self.schedule.at(self.beta, step)

    def observe(self, estimate: Tensor, mask: Tensor, share: Tensor | None) -> None:
        """Count the estimates of one micro-batch, each token for the share of its row."""
        if isinstance(self.schedule, Adaptive):
            pair = _sums(estimate, mask, share)
            self._measured = pair if self._measured is None else self._measured + pair

    def move(self) -> None:
        """Move an adaptive coefficient, at the end of an optimizer step."""
        if isinstance(self.schedule, Adaptive) and self._measured is not None:
            value, tokens = self._total(self._measured).tolist()
            self.beta = self.schedule.after(self.beta, value / tokens) if tokens else self.beta
            self._measured = None


def next_entropy_coefficient(
    coefficient: float, entropy: float, *, target: float, delta: float, low: float, high: float
) -> float:
    """One move of the adaptive entropy bonus (Skywork-OR1, arXiv:2505.22312): up at or below the target, down above."""
    return min(high, coefficient + delta) if entropy <= target else max(low, coefficient - delta)


class EntropyWindow:
    """Entropy per token over the micro-batches of an accumulation window."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def observe(self, entropies: Tensor, mask: Tensor, share: Tensor | None) -> None:
        """Count one micro-batch, each token for the share of its row."""
        pair = _sums(entropies, mask, share)
        self._sums = pair if self._sums is None else self._sums + pair

    def close(self, total: Callable[[Tensor], Tensor]) -> float:
        """The mean over all ranks; starts the next window."""
        assert self._sums is not None
        value, tokens = total(self._sums).tolist()
        self._sums = None
        return float(value / max(tokens, 1.0))


def _sums(values: Tensor, mask: Tensor, share: Tensor | None) -> Tensor:
    """The sum of the values of trained tokens, and their number."""
    inside, counted = torch.where(mask, values.detach(), 0.0), mask
    if share is not None:
        weights = share.unsqueeze(1).to(inside)
        inside, counted = inside * weights, mask * weights
    return torch.stack([inside.sum().float(), counted.sum().float()])

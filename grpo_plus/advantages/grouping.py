"""Statistics by group id, for groups of any size in any order.

Values are laid out as one row a group, padded, so that every statistic is a reduction over a row. Unlike atomic
scatter-adds this gives the same bits on every run and device, and no group depends on another one's values.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from grpo_verifiers.options import Range

Eps = Annotated[float, Range(0, finite=True)]
"""Added to a standard deviation before dividing by it."""
Ddof = Literal[0, 1]
"""0: population, 1: sample standard deviation."""
TOLERANCE = 1e-6
"""Rewards this close, relative to max(1, largest |R| of the group), are equal: float32 cannot distinguish them."""


@dataclass(frozen=True, eq=False)
class Groups:
    """The place of each of N values in the grid of groups.

    Every statistic reads only the values under its mask; the rest may be NaN.

    Attributes:
        index: (N,) number of the group, from 0.
        slot: (N,) place in the group.
        width: members of the largest group.
    """

    index: Tensor
    slot: Tensor
    count: int
    width: int

    @classmethod
    def of(cls, ids_N: Tensor) -> "Groups":
        """Group by id; ids may be any integers in any order."""
        index_N = torch.unique(ids_N, return_inverse=True)[1]
        count = int(index_N.max()) + 1 if index_N.numel() else 0
        sizes_G = torch.bincount(index_N, minlength=count)
        order_N = torch.argsort(index_N, stable=True)
        first_G = sizes_G.cumsum(0) - sizes_G
        slot_N = torch.empty_like(index_N)
        slot_N[order_N] = torch.arange(len(index_N), device=index_N.device) - first_G[index_N[order_N]]
        return cls(index_N, slot_N, count, int(sizes_G.max()) if count else 1)

    @classmethod
    def single(cls, values_N: Tensor) -> "Groups":
        """All values as one group: the batch."""
        return cls.of(torch.zeros(len(values_N), dtype=torch.long, device=values_N.device))

    def grid(self, values_N: Tensor, mask_N: Tensor, fill: float) -> Tensor:
        """Values as (group, member), with ``fill`` where the mask is off or a group is shorter."""
        out_GM = values_N.new_full((self.count, self.width), fill)
        out_GM[self.index, self.slot] = values_N.masked_fill(~mask_N, fill)
        return out_GM

    def total(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """Sum of each group, (G,)."""
        return self.grid(values_N, mask_N, 0.0).sum(dim=1)

    def size(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """Members of each group under the mask, (G,) in the dtype of the values."""
        return self.total(torch.ones_like(values_N), mask_N)

    def mean(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """Mean of each group, (G,); 0 for a group without members."""
        return self.total(values_N, mask_N) / self.size(values_N, mask_N).clamp(min=1)

    def highest(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """Largest value of each group, (G,); -inf for a group without members."""
        return self.grid(values_N, mask_N, -torch.inf).amax(dim=1)

    def std(self, values_N: Tensor, mask_N: Tensor, ddof: int) -> Tensor:
        """Standard deviation of each group, (G,); 0 if there are no more members than ``ddof``.

        Two passes, and the deviations are scaled before they are squared: E[x²] − E[x]² cancels and squares overflow.
        """
        deviations_N = values_N - self.mean(values_N, mask_N)[self.index]
        scale_G = self.highest(deviations_N.abs(), mask_N)
        scale_G = torch.where(scale_G > 0, scale_G, torch.ones_like(scale_G))
        squares_G = self.total((deviations_N / scale_G[self.index]).square(), mask_N)
        return (squares_G / (self.size(values_N, mask_N) - ddof).clamp(min=1)).sqrt() * scale_G

    def tolerance(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """Largest distance of two values of a group that count as equal, (G,)."""
        return TOLERANCE * self.highest(values_N.abs(), mask_N).clamp(min=1)

    def contrast(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """Groups with values that differ, (G,) bool; False for groups of one and empty ones."""
        span_G = self.highest(values_N, mask_N) + self.highest(-values_N, mask_N)
        return span_G > self.tolerance(values_N, mask_N)

    def live(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """(N,) bool: values under the mask in a group with contrast."""
        return mask_N & self.contrast(values_N, mask_N)[self.index]

    def centre(self, values_N: Tensor, mask_N: Tensor) -> Tensor:
        """Each value minus its group's mean, (N,); exactly 0 off the mask and in groups without contrast."""
        centred_N = values_N - self.mean(values_N, mask_N)[self.index]
        return centred_N.masked_fill(~self.live(values_N, mask_N), 0.0)


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient, and 0 where the numerator is 0, for any denominator."""
    return torch.where(numerator == 0, 0.0, numerator / denominator)


def whiten(values_N: Tensor, mask_N: Tensor, *, eps: float, ddof: int) -> Tensor:
    """Scale values under the mask to mean 0 and standard deviation 1; 0 off it, or if all are equal."""
    batch = Groups.single(values_N)
    return ratio(batch.centre(values_N, mask_N), batch.std(values_N, mask_N, ddof)[batch.index] + eps)


def zscores(values_N: Tensor, mask_N: Tensor, groups: Groups, *, eps: float, ddof: int) -> Tensor:
    """Z-score of each value in its group; exactly 0 off the mask and in groups without contrast."""
    return ratio(groups.centre(values_N, mask_N), groups.std(values_N, mask_N, ddof)[groups.index] + eps)

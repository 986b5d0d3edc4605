"""From weights to draws: the distribution over prompts, the share of a group, and draws from it."""

import torch
from torch import Tensor


def distribution(weights_P: Tensor, rows_P: Tensor, explore: float) -> Tensor:
    """(P,) π: proportional to weight times rows, mixed with ``explore`` of all rows alike.

    >>> distribution(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), 0.5)
    tensor([0.6250, 0.3750])
    """
    even = rows_P / rows_P.sum()
    scaled = weights_P / weights_P.max() * rows_P  # the largest may be close to overflow
    return (1 - explore) * scaled / scaled.sum() + explore * even


def shares(chances_P: Tensor, rows_P: Tensor) -> Tensor:
    """(P,) (1/N)/π of a row: with this weight, groups sampled from π represent all rows alike; 0 where π is 0.

    >>> shares(torch.tensor([0.8, 0.2]), torch.tensor([1.0, 1.0]))
    tensor([0.6250, 2.5000])
    """
    even = rows_P / rows_P.sum()
    return torch.where(chances_P > 0, even / chances_P, 0.0)


def sample_prompts(chances_P: Tensor, count: int, generator: torch.Generator, *, again: bool) -> list[int]:
    """Sample prompts from π; ``again``: with replacement. Without, repeats follow if too few have a chance."""
    able = int((chances_P > 0).sum())
    if again or able < count:
        first = [] if again else sample_prompts(chances_P, able, generator, again=False)
        ends = chances_P.double().cumsum(0)
        places = torch.rand(count - len(first), generator=generator, dtype=torch.float64) * ends[-1]
        prompts = torch.searchsorted(ends, places, right=True)
        last = int((chances_P > 0).nonzero()[-1])
        return first + prompts.clamp(max=last).tolist()
    waits = torch.empty(len(chances_P), dtype=torch.float64).exponential_(generator=generator) / chances_P
    return torch.topk(waits, count, largest=False, sorted=True).indices.tolist()

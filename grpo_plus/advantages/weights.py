"""Weights of rewards that an estimator does not read, found by trying."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from grpo_plus.advantages.compute import compute_advantages
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.table import RewardTable, StepScores

_GROUPS, _SIZE, _TOKENS = 16, 16, 4
_FACTORS = (0.25, 4.0)
_ALIKE = 1e-2
"""Of the largest advantage: the ``eps`` beside a standard deviation lets a little of the scale through."""


def unread_weights(part: str | Estimator | Callable[..., Any], weights: Sequence[float], **keywords: Any) -> list[int]:
    """The places of the weights that could be another one of the same sign without any advantage being another one.

    >>> unread_weights("zscore", [1.0, 0.5]), unread_weights("zscore", [1.0])
    ([], [0])

    Tried on rewards, steps and values drawn at random. An estimator that cannot be run on them is not judged.
    """
    try:
        table = _random_table(torch.tensor([float(weight) for weight in weights]))
        here = compute_advantages(part, table, **keywords)
        return [place for place in range(len(weights)) if _is_idle(part, table, here, place, keywords)]
    except Exception:  # noqa: BLE001 - a plug-in's own; where it runs, it says so
        return []


def _is_idle(part: Any, table: RewardTable, here: torch.Tensor, place: int, keywords: dict[str, Any]) -> bool:
    for factor in _FACTORS:
        other = table.weights.clone()
        other[place] = factor * (other[place] or 1.0)
        there = compute_advantages(part, replace(table, weights=other), **keywords)
        if not torch.allclose(here, there, rtol=_ALIKE, atol=_ALIKE * float(here.abs().max())):
            return False
    return True


def _random_table(weights_K: torch.Tensor) -> RewardTable:
    """Rewards of several groups, each completion with two steps."""
    random = torch.Generator().manual_seed(0)
    count = _GROUPS * _SIZE
    starts = torch.tensor([[0, _TOKENS // 2], [_TOKENS // 2, _TOKENS]]).repeat(count, 1)
    return RewardTable(
        rewards=torch.rand(count, len(weights_K), generator=random),
        weights=weights_K,
        groups=torch.arange(count) // _SIZE,
        lengths=torch.full((count,), _TOKENS),
        values=torch.rand(count, _TOKENS, generator=torch.Generator().manual_seed(1)),
        steps=StepScores(
            torch.arange(count).repeat_interleave(2),
            torch.rand(2 * count, generator=random),
            starts,
            states=torch.arange(2 * count) % 2,
        ),
    )

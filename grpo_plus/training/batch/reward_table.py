"""From one generation batch to the table that estimators read, and from their answer back to the batch."""

from collections.abc import Sequence
from typing import Any

import torch

from grpo_plus.advantages import RewardTable, StepScores
from grpo_plus.advantages.table import PENALTY, TRAINABLE
from grpo_plus.training.hooks import group_ids
from grpo_plus.training.scoring import NO_STATE


def is_truncated(completion_ids: Sequence[Sequence[int]], ends: Sequence[int]) -> list[bool]:
    """Return True for completions that ran out of tokens: their last token is no stop token."""
    stops = set(ends)
    return [len(ids) > 0 and ids[-1] not in stops for ids in completion_ids]


def reward_table(
    rewards_NK: torch.Tensor,
    *,
    weights_K: torch.Tensor,
    lengths_N: torch.Tensor,
    truncated_N: torch.Tensor,
    num_generations: int,
    names: Sequence[str],
    steps: StepScores | None,
    trainable_NT: torch.Tensor,
    penalty_NT: torch.Tensor | None = None,
    values_NT: torch.Tensor | None = None,
) -> RewardTable:
    """Build the table of one generation batch, over all ranks.

    A penalty is one more reward, negative, of weight 1, and not applicable where no other reward is. An estimator per
    token reads it token by token.
    """
    weights_K = weights_K.to(rewards_NK)
    extras = {TRAINABLE: trainable_NT}
    if penalty_NT is not None:
        extras[PENALTY] = penalty_NT.to(rewards_NK)
        scorable_N = ~rewards_NK.isnan().all(dim=1)
        column_N = torch.where(scorable_N, -extras[PENALTY].sum(1), float("nan"))
        rewards_NK = torch.cat([rewards_NK, column_N.unsqueeze(1)], dim=1)
        weights_K = torch.cat([weights_K, weights_K.new_ones(1)])
        names = (*names, "kl_penalty")
    return RewardTable(
        rewards=rewards_NK,
        weights=weights_K,
        groups=group_ids(len(rewards_NK), num_generations, rewards_NK.device),
        lengths=lengths_N,
        steps=steps,
        names=tuple(names),
        truncated=truncated_N.bool(),
        extras=extras,
        values=values_NT,
    )


def per_completion(advantages: torch.Tensor, table: RewardTable) -> torch.Tensor:
    """Return one number a completion for the log: the value itself, or the mean over its trainable tokens."""
    if advantages.dim() == 1:
        return advantages
    sums_N = advantages.to("cpu", torch.float64).sum(dim=1)  # large ones would overflow
    return sums_N / table.trainable().sum(dim=1).clamp(min=1).cpu()


def per_token(advantages_NT: torch.Tensor, table: RewardTable) -> list[list[float]]:
    """Return each completion's values, without the padding."""
    return [row[:length] for row, length in zip(advantages_NT.tolist(), table.lengths.tolist(), strict=True)]


def step_scores(rows: Sequence[Sequence[tuple[Any, ...]]], *, device: torch.device, dtype: torch.dtype) -> StepScores:
    """Join ragged ``(first token, one past the last, score, state)`` of all completions; the state may be missing."""
    flat: list[tuple[Any, ...]] = [(row, *step) for row, steps in enumerate(rows) for step in steps]
    return StepScores(
        rows=torch.tensor([step[0] for step in flat], dtype=torch.long, device=device),
        scores=torch.tensor([step[3] for step in flat], dtype=dtype, device=device),
        spans=torch.tensor([step[1:3] for step in flat], dtype=torch.long, device=device).reshape(-1, 2),
        states=torch.tensor([NO_STATE, *(step[4] if len(step) > 4 else NO_STATE for step in flat)], device=device)[1:],
    )

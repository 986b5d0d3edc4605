"""Metrics of the advantages of a batch: plain numbers, for the trainer to log."""

from typing import Any

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.gigpo import same_state
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.spread import with_trainable_steps
from grpo_plus.advantages.table import RewardTable


@torch.no_grad()
def advantage_metrics(estimator: Estimator, table: RewardTable, advantages: Tensor) -> dict[str, float]:
    """Return metrics of an estimator's advantages for a table.

    >>> from grpo_plus.advantages import compute_advantages, get_advantage
    >>> table = RewardTable.of([1, 0, 1, 1], groups=[0, 0, 1, 1])
    >>> metrics = advantage_metrics(get_advantage("rloo"), table, compute_advantages("rloo", table))
    >>> metrics["advantages/dead_group_fraction"]
    0.5

    Returns:
        ``advantages/zero_fraction`` (of completions, or of trainable tokens), ``advantages/dead_group_fraction``
        (groups whose every advantage is 0), ``advantages/abs_mean``, ``advantages/std``, ``frac_reward_zero_std``
        (completions in groups whose rewards have standard deviation 0, as TRL counts them) and, for step values,
        ``steps/per_completion``, ``steps/scored_fraction``, ``steps/score_mean`` and, with states,
        ``advantages/anchored_fraction`` (steps whose state another step of their group has, too). Means without values
        are omitted.
    """
    per_token = advantages.dim() == 2
    if tuple(advantages.shape) != ((len(table.rewards), table.width) if per_token else (len(table.rewards),)):
        raise ValueError(
            f"the advantages of {estimator.title} have shape {tuple(advantages.shape)}, not that of a "
            f"table of {len(table.rewards)} completions of up to {table.width} tokens."
        )
    table, advantages = table.to(device="cpu", dtype=torch.float64), advantages.to("cpu", torch.float64)  # no overflow
    values = advantages[table.trainable()] if per_token else advantages
    groups = Groups.of(table.groups)
    nonzero_N = (advantages != 0).reshape(len(advantages), -1).any(dim=1)
    every_N = torch.ones_like(nonzero_N)
    dead_G = groups.highest(nonzero_N.to(advantages.dtype), every_N) <= 0
    metrics = {
        "advantages/dead_group_fraction": dead_G.double().mean(),
        "frac_reward_zero_std": _zero_std(table, groups),
    }
    if values.numel():
        metrics["advantages/zero_fraction"] = (values == 0).double().mean()
        metrics["advantages/abs_mean"] = values.abs().mean()
        metrics["advantages/std"] = values.std(correction=min(1, values.numel() - 1))
    if per_token and table.steps is not None:
        metrics |= _step_metrics(table)
    return {name: float(value) for name, value in metrics.items() if not value.isnan()}


def _zero_std(table: RewardTable, groups: Groups) -> Tensor:
    """Share of completions in groups with sample standard deviation 0; undefined for one scorable among several."""
    totals_N, scorable_N = table.totals(), table.scorable()
    close_G = torch.isclose(groups.std(totals_N, scorable_N, ddof=1), totals_N.new_zeros(()))
    members_G = groups.size(totals_N, torch.ones_like(scorable_N))
    defined_G = (groups.size(totals_N, scorable_N) > 1) | (members_G == 1)
    return (close_G & defined_G)[groups.index].double().mean()


def _step_metrics(table: RewardTable) -> dict[str, Tensor]:
    assert table.steps is not None
    steps = table.steps.select(with_trainable_steps(table))
    scored_S = ~steps.scores.isnan()
    metrics: dict[str, Any] = {
        "steps/per_completion": torch.tensor(len(steps) / max(1, len(table.rewards))),
        "steps/scored_fraction": scored_S.double().mean(),
        "steps/score_mean": steps.scores[scored_S].mean(),
    }
    if steps.states is not None and bool((with_state_S := steps.states >= 0).any()):
        anchors = same_state(table, steps)
        shared_S = anchors.size(torch.ones_like(steps.scores), with_state_S)[anchors.index] > 1
        metrics["advantages/anchored_fraction"] = shared_S.double().mean()
    return metrics

"""Group-in-group credit: turns that begin in the same state are compared with each other (GiGPO).

A token carries A^E + ω·A^S of its turn. A^E is the outcome R against the group's outcomes. The return of turn t of
completion i is Σ_{k ≥ t} γ^(k − t)·r_k, where r_k is the turn's score, plus R for the last turn. The turns of a
group that begin in equal states are an anchor group, and A^S is the return against theirs. Both are divided by σ + eps,
or with ``scale="none"`` by 1.

Use it when an environment reports its states (``state_key``) and the completions of a prompt meet the same ones again,
as in games and on web pages: a turn is then compared with other turns in the same state.

Paper: GiGPO, arXiv:2505.10978.

Assumes that completions of a prompt meet the same states again.

Degenerate case: a turn without a state, alone in its state, or whose
anchor group has equal returns has A^S = 0; a turn without a score counts 0 in the return. A completion without an
outcome gets 0 and is in no statistic. In a group of one nothing is compared, not even two turns in the same state.
Unlike with other estimators of groups, equal rewards need not give 0: a state with more turns to the same outcome
has the smaller return with γ < 1.

Deviation: the paper's A^E is of the sum of all rewards, here of R, which contains the scores of turns only through a
reward with a weight; the paper distinguishes states by the full observation, here by the environment's ``state_key``.

Config:
    advantage: {name: gigpo, gamma: 0.95, omega: 1.0}
    environment: ./game.py:Treasure
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Ddof, Eps, Groups, zscores
from grpo_plus.advantages.spread import on_own_tokens, states_of, steps_of
from grpo_plus.advantages.steps import StepScores
from grpo_plus.advantages.table import RewardTable
from grpo_verifiers.options import Range


def gigpo(
    table: RewardTable,
    *,
    gamma: Annotated[float, Range(0, 1)] = 0.95,
    omega: Annotated[float, Range(0, finite=True)] = 1.0,
    scale: Literal["std", "none"] = "std",
    eps: Eps = 1e-4,
    ddof: Ddof = 1,
    steps_from: str | None = None,  # noqa: ARG001 - the verifier of the turns: read where the table is built
) -> Tensor:
    """(R − μ)/(σ + eps) + ω·(return − its mean over turns in the same state)/(their σ + eps).

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> steps = [[(0.0, 0, 1, 7), (0.0, 1, 2, 8)], [(0.0, 0, 1, 7), (0.0, 1, 2, 9)]]
    >>> compute_advantages("gigpo", RewardTable.of([1, 0], steps=steps), gamma=0.5, scale="none")
    tensor([[ 0.7500,  0.5000],
            [-0.7500, -0.5000]])

    Args:
        table: the rewards, and turns with the states before them.
        gamma: discount of a turn's return, by turns.
        omega: weight of the comparison in states, relative to that of outcomes.
        scale: ``std`` divides both by their standard deviations, ``none`` by nothing.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
        steps_from: the verifier whose scores of turns count, if several give some.
    """
    totals_N, scorable_N = table.totals(), table.scorable()
    groups, rows_S = Groups.of(table.groups), steps_of(table).rows
    several_G = groups.size(totals_N.nan_to_num(nan=0.0), scorable_N) > 1
    compared_S = (states_of(table) >= 0) & (scorable_N & several_G[groups.index])[rows_S]
    how: dict[str, Any] = {"scale": scale, "eps": eps, "ddof": ddof}
    episode_N = _relative(totals_N, scorable_N, groups, **how)
    step_S = _relative(returns(table, gamma), compared_S, same_state(table, steps_of(table)), **how)
    return episode_N[:, None] + omega * on_own_tokens(table, step_S)


def returns(table: RewardTable, gamma: float) -> Tensor:
    """(S,) Σ_{k ≥ t} γ^(k − t)·r_k of each step t of its completion; the last one's r includes the outcome.

    >>> table = RewardTable.of([1.0, 1.0], steps=[[(0.5, 0, 2), (None, 2, 3), (0.0, 3, 5)], [(None, 0, 4)]])
    >>> returns(table, gamma=0.5)
    tensor([0.7500, 0.5000, 1.0000, 1.0000])
    """
    steps = steps_of(table)
    ordinals_S = steps.ordinals()
    most = int(ordinals_S.max()) + 1 if len(steps) else 0
    returns_NK = table.rewards.new_zeros(len(table.rewards), most + 1)
    returns_NK[steps.rows, ordinals_S] = steps.scores.nan_to_num(nan=0.0)
    lasts_N = torch.bincount(steps.rows, minlength=len(table.rewards)) - 1
    with_steps_N = lasts_N >= 0
    returns_NK[with_steps_N, lasts_N[with_steps_N]] += table.totals().nan_to_num(nan=0.0)[with_steps_N]
    for step in reversed(range(most)):
        returns_NK[:, step] += gamma * returns_NK[:, step + 1]
    return returns_NK[steps.rows, ordinals_S]


def same_state(table: RewardTable, steps: StepScores) -> Groups:
    """Group steps of equal states of one group. Steps without a state form a group, too."""
    if steps.states is None or not len(steps):
        return Groups.of(steps.rows)
    pairs_S2 = torch.stack([table.groups[steps.rows], steps.states.clamp(min=-1)], dim=1)
    return Groups.of(torch.unique(pairs_S2, dim=0, return_inverse=True)[1])


def _relative(values: Tensor, mask: Tensor, groups: Groups, *, scale: str, eps: float, ddof: int) -> Tensor:
    """Values against their group's; exactly 0 off the mask and in groups without contrast."""
    return groups.centre(values, mask) if scale == "none" else zscores(values, mask, groups, eps=eps, ddof=ddof)


def _check(keywords: Mapping[str, Any]) -> list[str]:
    """An ``omega`` of 0, which ignores the states."""
    if keywords.get("omega", 1.0) != 0:
        return []
    other = "center" if keywords.get("scale") == "none" else "zscore"
    text = "advantage estimator 'gigpo': keyword 'omega' is 0, so that states and turns would be ignored"
    return [f"{text}: give it a weight, or set advantage: {other}, which is equivalent."]


ESTIMATOR = Estimator("gigpo", gigpo, per="token", own_zero_rule=True, reads_states=True, check=_check)

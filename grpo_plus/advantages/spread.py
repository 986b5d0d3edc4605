"""From values of steps to values of tokens, for every step estimator."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from grpo_plus.advantages.grouping import Ddof, Eps, Groups, zscores
from grpo_plus.advantages.table import RewardTable, StepScores
from grpo_verifiers.options import Range

SPREAD_KEYWORDS = ("credit", "gamma", "outcome_weight")
"""Keywords of every step estimator, in addition to those of its function."""


def steps_of(table: RewardTable) -> StepScores:
    """Return the steps of the table; raise if there are none."""
    if table.steps is None:
        raise ValueError(
            "a step estimator needs step scores, but table.steps is None: use a verifier that scores steps, or give "
            "StepScores (with no rows, when no completion has a step)."
        )
    return table.steps


def states_of(table: RewardTable) -> Tensor:
    """Return the states before the steps of the table; raise if there are none."""
    states_S = steps_of(table).states
    if states_S is None:
        raise ValueError(
            "this estimator compares steps by the state before them, but table.steps.states is None: use an "
            "environment with state_key, or give StepScores(..., states=...), an equal number for equal states."
        )
    return states_S


def with_trainable_steps(table: RewardTable) -> Tensor:
    """(S,) bool: the steps with a trained token; all statistics ignore the rest."""
    steps = steps_of(table)
    before_NT = torch.nn.functional.pad(table.trainable().long().cumsum(dim=1), (1, 0))
    start_S, end_S = steps.spans.clamp(max=table.width).unbind(1)
    return before_NT[steps.rows, end_S] > before_NT[steps.rows, start_S]


def spread(
    table: RewardTable,
    values_S: Tensor,
    *,
    credit: Literal["step", "return"] = "step",
    gamma: Annotated[float, Range(0, 1)] | None = None,
    outcome_weight: Annotated[float, Range(finite=True)] | None = None,
    eps: Eps = 1e-4,
    ddof: Ddof = 1,
) -> Tensor:
    """Assign step values to tokens, (N, T); tokens that are not trained on get 0.

    Every step of the table must have a trainable token. With credit "step" a token carries the value of the step it
    lies in, 0 outside any step; with "return" the sum over its own and all later steps, each discounted by ``gamma``
    (1 unless set) for every step between. Its own step is the first whose end is past the token: before a step, the
    next one.

    A table does not identify the reward of the steps, so an unset ``outcome_weight`` adds nothing here.

    Args:
        table: the rewards and the steps.
        values_S: a value for each step.
        credit: ``step`` or ``return``.
        gamma: discount of later steps, for every step between; 1 unless set.
        outcome_weight: weight of the outcome's z-score, which is added to every token. Unset: 1 if a reward other than
            that of the steps' source has a weight, else 0.
        eps: added to the standard deviation of outcomes.
        ddof: 0: of the population, 1: of a sample.
    """
    steps = steps_of(table)
    trainable_NT = table.trainable()
    if credit == "step":
        tokens_NT = on_own_tokens(table, values_S)
    else:
        end_S = steps.spans[:, 1].clamp(max=table.width)
        tokens_NT = _own_and_later(values_S, steps.rows, end_S, trainable_NT.shape, 1.0 if gamma is None else gamma)
    if outcome_weight:
        totals_N = table.totals()
        outcome_N = zscores(totals_N, table.scorable(), Groups.of(table.groups), eps=eps, ddof=ddof)
        tokens_NT = tokens_NT + outcome_weight * outcome_N[:, None]
    return tokens_NT.masked_fill(~trainable_NT, 0.0)


def on_own_tokens(table: RewardTable, values_S: Tensor) -> Tensor:
    """(N, T) the value of the step that each token lies in, 0 outside any step.

    The cumulative sum is over numbers of steps, not values: integers have no rounding errors.
    """
    steps = steps_of(table)
    start_S, end_S = steps.spans.clamp(max=table.width).unbind(1)
    numbers_S = torch.arange(1, len(values_S) + 1, device=values_S.device)
    edges_NT = numbers_S.new_zeros(len(table.rewards), table.width + 1)
    edges_NT.index_put_((steps.rows, start_S), numbers_S, accumulate=True)
    edges_NT.index_put_((steps.rows, end_S), -numbers_S, accumulate=True)
    return torch.nn.functional.pad(values_S, (1, 0))[edges_NT.cumsum(dim=1)[:, :-1]]


def _own_and_later(values_S: Tensor, rows_S: Tensor, end_S: Tensor, shape: torch.Size, gamma: float) -> Tensor:
    """Σ_j γ^(j − k)·value_j over the steps j from the token's own, k, which is the first whose end is past it."""
    ends_NT = torch.zeros(shape[0], shape[1] + 1, dtype=torch.long, device=values_S.device)
    ends_NT[rows_S, end_S] = 1  # disjoint steps never share an end
    own_NT = ends_NT.cumsum(dim=1)[:, :-1]  # as many steps have ended
    number_S = own_NT[rows_S, end_S - 1]
    most = int(number_S.max()) + 1 if len(number_S) else 0
    returns_NK = values_S.new_zeros(shape[0], most + 1)
    returns_NK[rows_S, number_S] = values_S
    for step in reversed(range(most)):
        returns_NK[:, step] += gamma * returns_NK[:, step + 1]
    return returns_NK.gather(1, own_NT)

"""From (B, T) values to the loss of one micro-batch. The divisors come from `Counts`, never from the micro-batch.

Every function takes the values, already zero outside the mask and times the share of their row, and the batch, and
returns a scalar. Summed over the micro-batches of an accumulation window and averaged over ranks, it is the mean that
the docstring names. A reduction is linear in the values, so that a share is the weight of a row.
"""

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from grpo_plus.objectives.batch import TokenBatch
from grpo_plus.objectives.pieces import Piece
from grpo_verifiers.options import Range


def sequence_mean(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean over completions of the mean over tokens.

    Use it when every completion should count alike at any length: a token of a long one counts less.

    Paper: DeepSeekMath (GRPO), arXiv:2402.03300.

    Degenerate case: a completion without a trained token adds 0 and counts.
    """
    return (values.sum(-1) / batch.mask.sum(-1).clamp(min=1)).sum() / batch.counts.completions


SEQUENCE_MEAN = Piece("reduce", "sequence_mean", sequence_mean, "mean over completions of mean_t")


def token_mean(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean over all tokens.

    Use it when every token should count alike: completions count by their length.

    Paper: DAPO, arXiv:2503.14476.

    Degenerate case: a batch of very long wrong completions is mostly about these.
    """
    return values.sum() / batch.counts.tokens


TOKEN_MEAN = Piece("reduce", "token_mean", token_mean, "Σ_t / tokens")


def constant(values: Tensor, batch: TokenBatch, *, length: Annotated[int, Range(1)] | None = None) -> Tensor:
    """Sum over tokens by completions times a constant length.

    Use it when no completion should gain or lose by being long or short, and the scale of the loss should not follow
    the lengths of the batch.

    Paper: Dr. GRPO, arXiv:2503.20783.

    Degenerate case: a ``length`` far above the completions' makes the update small; raise the learning rate with it.

    Args:
        values: of every token.
        batch: with the counts.
        length: the constant; by default `max_completion_length`.
    """
    length = batch.max_completion_length if length is None else length
    if length is None:
        raise ValueError(
            "the reduction 'constant' divides by a length, but the batch has no max_completion_length: give it "
            "{name: constant, length: …}."
        )
    return values.sum() / (batch.counts.completions * length)


CONSTANT = Piece("reduce", "constant", constant, "Σ_t / (completions · {length})")


def sequence_sum(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean over completions of the sum over tokens.

    Use it when a ratio per completion is reduced (``luspo``), where a mean over tokens would favour short completions.

    Paper: LUSPO, arXiv:2602.05261.

    Degenerate case: the scale of the loss grows with the length.
    """
    return values.sum() / batch.counts.completions


SEQUENCE_SUM = Piece("reduce", "sequence_sum", sequence_sum, "mean over completions of Σ_t")


def prompt_mean(values: Tensor, batch: TokenBatch) -> Tensor:
    """Mean over prompts of the mean over the tokens of the prompt's completions, across ranks.

    Use it when every prompt should count alike at any length of its completions, and the tokens of a prompt alike.

    Degenerate case: a prompt that is twice in a batch counts twice.
    """
    if batch.prompt_tokens is None or batch.counts.prompts is None:
        raise ValueError(
            "the reduction 'prompt_mean' needs the tokens of each prompt (prompt_tokens) and the number of prompts "
            "(counts.prompts), and this batch has neither: it was not prepared by the trainer that computes the loss."
        )
    return (values.sum(-1) / batch.prompt_tokens.clamp(min=1).to(values.dtype)).sum() / batch.counts.prompts


PROMPT_MEAN = Piece("reduce", "prompt_mean", prompt_mean, "mean over prompts of the mean over tokens")


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T) values with exact zeros outside the mask; one-column values are repeated for every token."""
    return torch.where(mask, values, 0.0)


def over_tokens(rest: Tensor, actual_C: Tensor, guessed_C: Tensor, keep: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a divisor and factors of shares such that Σ factor·share·x / divisor expects Σ x / tokens, over all coins.

    1/tokens is ∫ exp(−s·tokens) ds, where exp(−s·actual) is unbiased as (1/keep)·exp(−s·actual) + (1 − 1/keep)·
    exp(−s·guessed) for a group that continues, and as exp(−s·guessed) for one that stops; guesses use the first
    completions only. By Gauss-Laguerre quadrature.

    Args:
        rest: tokens of the groups without a coin, and the guesses of those that stopped.
        actual_C: tokens of each group that continues after a tie.
        guessed_C: guesses of them, above 0.
        keep: the chance that a tied group continues.

    Returns:
        the divisor, the factor of groups without a coin, and that of each group that continues, (C,).
    """
    divisor = rest + guessed_C.sum()
    nodes, weights = (torch.from_numpy(one).to(actual_C) for one in np.polynomial.laguerre.laggauss(64))
    ratio_SC = torch.exp(-nodes[:, None] * (actual_C - guessed_C) / divisor)
    each_SC = 1 + (ratio_SC - 1) / keep
    ones_S1 = torch.ones_like(nodes)[:, None]
    before_SC = torch.cat([ones_S1, each_SC], dim=1).cumprod(1)
    after_SC = torch.cat([ones_S1, each_SC.flip(1)], dim=1).cumprod(1).flip(1)
    factors_C = weights @ (ratio_SC * before_SC[:, :-1] * after_SC[:, 1:])
    return divisor, weights @ before_SC[:, -1], factors_C

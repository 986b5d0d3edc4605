"""Prompts whose groups are likely to have contrast: without it a group-relative estimator learns nothing.

A prompt's pass rate x has the posterior Beta(a, b): its decayed passes and fails on a prior that is fitted to all
prompts seen, by moments. A group of G has contrast with P = 1 − E[x^G + (1 − x)^G], in closed form.
Rewards with more than two values have no pass rate: P is then the decayed rate of groups with contrast, shrunk towards
the overall rate by one group.

Use it when many prompts are always or never solved, so that their groups are dead, and the run passes over the data
more than once: there is no evidence on a prompt before its first group.

Paper: Kleinman, 1973, Proportions with extraneous variance, for the fit of the prior.

Assumes that a prompt's pass rate changes slowly enough for its last visits to predict the next one. The fit treats
decayed counts as counts.

Degenerate case: fewer than two prompts seen, and the prior is Beta(1, 1).
"""

from typing import Annotated, Any

from torch import Tensor

from grpo_plus.selection.history import PromptHistory
from grpo_plus.selection.part import Selection
from grpo_verifiers.options import Range
from grpo_verifiers.rules import needs

LEAST_MEAN = 0.02
LEAST, MOST = 0.5, 32.0
"""Floor of the prior's mean and of one minus it; bounds of its weight in completions."""


def contrast(history: PromptHistory, *, power: Annotated[float, Range(0, finite=True)] = 1.0) -> Tensor:
    """π ∝ P(contrast)^power, where P(contrast) = 1 − E[x^G + (1 − x)^G] and x is the pass rate of the prompt.

    >>> from grpo_plus.selection import selection_weights
    >>> history = PromptHistory.of([[1, 1, 1, 1], [1, 0, 1, 0]], num_generations=4)
    >>> always, sometimes = selection_weights("contrast", history).tolist()
    >>> always < sometimes
    True

    Args:
        history: of the prompts.
        power: 0 samples all alike, more than 1 prefers prompts with contrast more strictly.
    """
    return contrast_chance(history).pow(power)


def contrast_chance(history: PromptHistory) -> Tensor:
    """(P,) the probability that the next group of a prompt has contrast.

    >>> contrast_chance(PromptHistory.of([[], []], num_generations=2)).float()
    tensor([0.3333, 0.3333])
    """
    if history.graded:
        groups, live = history.groups, history.live
        typical = (float(live.sum()) + 1) / (float(groups.sum()) + 2)
        return (live + typical) / (groups + 1)
    passes = history.passes()
    first, second = fitted_prior(passes, history.counts)
    return chance_of_both(first + passes, second + history.counts - passes, history.num_generations)


def chance_of_both(a_P: Tensor, b_P: Tensor, size: int) -> Tensor:
    """1 − E[x^n + (1 − x)^n] for x ~ Beta(a, b): both outcomes are among n.

    >>> import torch
    >>> chance_of_both(torch.tensor([1.0]), torch.tensor([1.0]), 2)
    tensor([0.3333])
    """

    def log_power(a: Tensor, b: Tensor) -> Tensor:
        """Log E[x^n], a ratio of Beta functions."""
        return (a + size).lgamma() - a.lgamma() + (a + b).lgamma() - (a + b + size).lgamma()

    return (1 - log_power(a_P, b_P).exp() - log_power(b_P, a_P).exp()).clamp(0, 1)


def fitted_prior(passes_P: Tensor, counts_P: Tensor) -> tuple[float, float]:
    """Return the Beta prior of pass rates, from each prompt's passes and completions.

    >>> import torch
    >>> fitted_prior(torch.zeros(3), torch.zeros(3))
    (1.0, 1.0)
    """
    visited = counts_P > 0
    if int(visited.sum()) < 2:
        return 1.0, 1.0
    counts, passes = counts_P[visited].double(), passes_P[visited].double()
    total = counts.sum()
    mean = min(max(float((passes.sum() + 1) / (total + 2)), LEAST_MEAN), 1 - LEAST_MEAN)
    spread = float((counts * (passes / counts - mean).square()).sum())
    sampling = float((1 - counts / total).sum())
    between = float((counts * (1 - counts / total)).sum())
    noise = mean * (1 - mean)
    scale = noise * (between - sampling)
    correlation = (spread - noise * sampling) / scale if scale > 0 else 0.0
    weight = MOST if correlation <= 0 else min(max(1 / correlation - 1, LEAST), MOST)
    return mean * weight, (1 - mean) * weight


def _alone(choice: Any) -> bool:
    return bool(choice.size == 1)


_ALONE = "a group of one has no contrast, so no prompt would be sampled"
_PAIR = needs("num_generations of 2 or more", _ALONE, way="Raise it", when=_alone)
SELECTION = Selection("contrast", contrast, rules=(_PAIR,))

"""Pairs of completions of one prompt in a generation batch, ordered by the verifiers' scores.

After DeepSeekMath (arXiv 2402.03300, algorithm 1), which trains its reward model on the policy's completions. Only
completions of one group are compared, as Bradley–Terry scores have no common level across prompts. Equal scores make no
pair; a group without contrast has none. Degenerate case: one completion a prompt.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Ids = tuple[int, ...]


class Comparison(NamedTuple):
    """A prompt with a better and a worse completion, as sampled ids."""

    prompt: Ids
    chosen: Ids
    rejected: Ids


class Labelled(NamedTuple):
    """A prompt and a completion with the last token of each step, and the step's label: 1 is good, 0 is bad."""

    prompt: Ids
    completion: Ids
    ends: Ids
    labels: Ids


def ordered_pairs(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return the indices, (Q, 2), of the better and the worse completion of each pair.

    >>> ordered_pairs(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1])).tolist()
    [[0, 1], [2, 1]]

    Scores that are not finite are in no pair.
    """
    finite_N = scores_N.isfinite()
    scores_N = scores_N.double()
    margins_NN = scores_N[:, None] - scores_N[None, :]
    same_NN = (groups_N[:, None] == groups_N[None, :]) & finite_N[:, None] & finite_N[None, :]
    return (same_NN & (margins_NN > 0)).nonzero()


def few_of_each(pairs_Q2: Tensor, groups_N: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return at most ``most`` random pairs of each group, in their order."""
    groups_Q = groups_N[pairs_Q2[:, 0]]
    shuffled = torch.randperm(len(pairs_Q2), generator=generator)
    counts: dict[int, int] = {}
    places = []
    for place in shuffled.tolist():
        group = int(groups_Q[place])
        counts[group] = counts.get(group, 0) + 1
        if counts[group] <= most:
            places.append(place)
    return pairs_Q2[torch.tensor(sorted(places), dtype=torch.long)]


def step_labels(steps: Sequence[tuple[int, int, float]], threshold: float) -> tuple[Ids, Ids]:
    """Return the last token and the label of each judged step with at least one token.

    >>> step_labels([(0, 3, 1.0), (3, 3, 1.0), (3, 5, 0.2), (5, 6, float("nan"))], 0.5)
    ((2, 4), (1, 0))
    """
    judged = [(end - 1, int(score >= threshold)) for start, end, score in steps if end > start and score == score]  # noqa: PLR0124 - NaN
    return tuple(end for end, _ in judged), tuple(label for _, label in judged)


def is_held_out(prompt: Any, share: float) -> bool:
    """Return True for this share of all prompts, by a checksum of the text or the messages."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    first = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]
    return int.from_bytes(first, "big") < share * 2**64

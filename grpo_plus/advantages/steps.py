"""Scores of the steps of completions, and the checks of tensors of tables."""

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from grpo_plus.advantages.grouping import Groups


@dataclass(frozen=True, eq=False)
class StepScores:
    """Per-step rewards, ragged over completions.

    >>> from grpo_plus.advantages import RewardTable
    >>> len(RewardTable.of([1, 0], steps=[[(1.0, 0, 3), (None, 3, 7)], [(0.5, 0, 5)]]).steps)
    3

    Attributes:
        rows: (S,) the completion of each step.
        scores: (S,) score of each step; NaN: not scored.
        spans: (S, 2) first and one-past-last completion token of each step.
        states: (S,) a key of the state before each step; equal keys of one group are the same state, and a negative
            key is no state. None: no states at all.
    """

    rows: Tensor
    scores: Tensor
    spans: Tensor
    states: Tensor | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "rows", as_tensor("StepScores.rows", self.rows, 1, torch.long))
        put(self, "scores", as_tensor("StepScores.scores", self.scores, 1, float_dtype(self.scores)))
        put(self, "spans", as_tensor("StepScores.spans", self.spans, 2, torch.long))
        count = len(self.rows)
        if self.scores.shape != (count,):
            fail("StepScores.scores", f"one score for each of the {count} rows", f"shape {tuple(self.scores.shape)}")
        if self.spans.shape != (count, 2):
            fail("StepScores.spans", f"shape ({count}, 2), first and one-past-last token", tuple(self.spans.shape))
        if self.states is not None:
            put(self, "states", as_tensor("StepScores.states", self.states, 1, torch.long))
            if self.states.shape != (count,):
                fail("StepScores.states", f"one key for each of the {count} rows", f"shape {tuple(self.states.shape)}")
        finite = "finite numbers, or NaN for a step without a score"
        refuse(self.scores.isinf(), self.scores, "StepScores.scores", finite, "step")
        start_S, end_S = self.spans.unbind(1)
        refuse(start_S < 0, self.spans, "StepScores.spans", "token positions from 0", "step")
        refuse(end_S < start_S, self.spans, "StepScores.spans", "first <= one-past-last token", "step")
        self._refuse_overlaps()

    def _refuse_overlaps(self) -> None:
        start_S, end_S = self.spans.unbind(1)
        nonempty = (end_S > start_S).nonzero().squeeze(1)  # an empty span overlaps nothing
        order = nonempty[torch.argsort(start_S[nonempty], stable=True)]
        order = order[torch.argsort(self.rows[order], stable=True)]
        left, right = order[:-1], order[1:]
        bad = (self.rows[left] == self.rows[right]) & (end_S[left] > start_S[right])
        if bool(bad.any()):
            one, two = int(left[bad][0]), int(right[bad][0])
            raise ValueError(
                f"StepScores.spans: steps {one} {self.spans[one].tolist()} and {two} {self.spans[two].tolist()} of "
                f"completion {int(self.rows[one])} overlap. A token belongs to one step: end a step where the next "
                "one starts."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "StepScores":
        """Return the steps on another device, or with their scores in another precision (float32 or float64)."""
        states = None if self.states is None else self.states.to(device=device)
        scores = self.scores.to(device=device, dtype=dtype)
        return StepScores(self.rows.to(device=device), scores, self.spans.to(device=device), states)

    def select(self, mask_S: Tensor) -> "StepScores":
        """Return the steps under the mask."""
        states = None if self.states is None else self.states[mask_S]
        return StepScores(self.rows[mask_S], self.scores[mask_S], self.spans[mask_S], states)

    def ordinals(self) -> Tensor:
        """(S,) the place of each step among those of its completion, from 0.

        >>> StepScores(torch.tensor([0, 0, 1]), torch.rand(3), torch.tensor([[4, 6], [0, 4], [0, 9]])).ordinals()
        tensor([1, 0, 0])
        """
        order_S = torch.argsort(self.spans[:, 0], stable=True)
        order_S = order_S[torch.argsort(self.rows[order_S], stable=True)]
        ordinals_S = torch.empty_like(self.rows)
        ordinals_S[order_S] = Groups.of(self.rows[order_S]).slot
        return ordinals_S


def fail(field: str, expected: str, value: object) -> NoReturn:
    """Raise an error with the field, the allowed values and the actual value."""
    raise ValueError(f"{field}: expected {expected}, got {value}.")


def as_tensor(field: str, value: object, dims: int, dtype: torch.dtype) -> Tensor:
    """Convert a tensor to ``dtype``; raise if that would lose information."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{field}: expected a tensor, got {type(value).__name__}. RewardTable.of([...]) takes lists.")
    if value.dim() != dims:
        fail(field, f"{dims} dimension{'s' * (dims > 1)}", f"shape {tuple(value.shape)}")
    if value.is_complex() or (dtype is torch.long and (value.is_floating_point() or value.dtype is torch.bool)):
        fail(field, "integers" if dtype is torch.long else "real numbers", value.dtype)
    return value.detach().to(dtype)


def refuse(bad: Tensor, values: Tensor, field: str, expected: str, of: str) -> None:
    """Raise an error with the first bad value and its index; ``of`` is the noun for the index."""
    if bool(bad.any()):
        at = int(bad.nonzero()[0, 0])
        fail(field, expected, f"{values[at].tolist()} for {of} {at}")


def float_dtype(*values: object) -> torch.dtype:
    """Return float64 if any tensor is float64, else float32: statistics in half precision are worthless."""
    return torch.float64 if any(getattr(value, "dtype", None) is torch.float64 for value in values) else torch.float32


def describe(value: object) -> str:
    """Return dtype and shape of a tensor, or the repr of any other value."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)

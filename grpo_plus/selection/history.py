"""The history of the prompts of a dataset: decayed counts of their completions and rewards.

Equal prompts of several rows are one prompt. Evidence decays by visits: a generation batch with completions of a
prompt multiplies its earlier evidence by ``decay``.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-6
"""Totals this close, relative to max(1, |R|), are equal."""


def digest_of(prompt: Any) -> bytes:
    """Return 16 bytes that identify a prompt in any process and release, from its JSON.

    >>> digest_of("1+1=").hex()[:8]
    '2153da11'
    """
    text = json.dumps(prompt, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).digest()[:16]


@dataclass(frozen=True)
class PromptHistory:
    """The evidence on each of P prompts; all tensors are float64 of shape (P,), and 0 for an unseen prompt.

    Attributes:
        counts: scored completions, decayed.
        sums: the sum of their total rewards, decayed.
        groups: groups of ``num_generations`` completions, decayed.
        live: groups with contrast, decayed.
        drawn: sampled groups, not decayed.
        rows: rows of the dataset with the prompt.
        num_generations: completions of a group.
        low: the smallest total reward so far; NaN: none.
        high: the largest.
        graded: more than two different totals so far, so there is no pass rate.
        progress: share of completed steps of the run.
        columns: columns of the dataset by name, one value a prompt: that of its first row.
    """

    counts: Tensor
    sums: Tensor
    groups: Tensor
    live: Tensor
    drawn: Tensor
    rows: Tensor
    num_generations: int
    low: float = math.nan
    high: float = math.nan
    graded: bool = False
    progress: float = 0.0
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @classmethod
    def empty(
        cls, rows: Sequence[int] | Tensor, num_generations: int, columns: Mapping[str, Sequence[Any]] | None = None
    ) -> "PromptHistory":
        """Return the history before sampling, of prompts with this number of rows each.

        >>> len(PromptHistory.empty([1, 1, 2], num_generations=8))
        3
        """
        row_counts = torch.as_tensor(rows, dtype=torch.float64)
        none = torch.zeros_like(row_counts)
        return cls(none, none, none, none, none, row_counts, num_generations, columns=columns or {})

    @classmethod
    def of(
        cls,
        rewards: Sequence[Sequence[float]],
        *,
        num_generations: int | None = None,
        progress: float = 0.0,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> "PromptHistory":
        """Return a history from plain lists, for experiments: the total rewards of one group of each prompt.

        >>> history = PromptHistory.of([[1, 1], [1, 0], []])
        >>> history.pass_rates().tolist()
        [1.0, 0.5, nan]
        """
        size = num_generations or max(2, *map(len, rewards), 2)
        start = cls.empty([1] * len(rewards), size, columns)
        index = [prompt for prompt, group in enumerate(rewards) for _ in group]
        totals = torch.tensor([float(reward) for group in rewards for reward in group], dtype=torch.float64)
        return replace(start.observed(index, totals, decay=1.0), progress=progress)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def seen(self) -> Tensor:
        """(P,) bool: a completion was scored."""
        return self.counts > 0

    def passes(self) -> Tensor:
        """(P,) decayed count of the completions with the higher one of two totals."""
        if self.low == self.high:  # one value so far: a reward of 0 or less is not a pass
            return self.counts * float(self.high > 0)
        if math.isnan(self.low):
            return torch.zeros_like(self.counts)
        return ((self.sums - self.low * self.counts) / (self.high - self.low)).clamp(min=0).minimum(self.counts)

    def pass_rates(self) -> Tensor:
        """(P,) decayed pass rate; of graded rewards the mean, as a share of their range. NaN: unseen."""
        return self.passes() / self.counts.masked_fill(~self.seen, math.nan)

    def impossible(self) -> Tensor:
        """(P,) bool: scored, next to no contrast, and rewards at the lower end: none of 2G completions would pass."""
        return self._quiet() & (self.pass_rates() < 0.5)

    def died_out(self) -> Tensor:
        """(P,) bool: scored, next to no contrast, and rewards at the upper end."""
        return self._quiet() & (self.pass_rates() >= 0.5)

    def _quiet(self) -> Tensor:
        if self.graded:
            return self.seen & (self.live < 0.1 * self.groups)
        rate, edge = self.pass_rates(), 1 / (2 * self.num_generations)
        return self.seen & ((rate < edge) | (rate > 1 - edge))

    def observed(
        self, index_N: Sequence[int], totals_N: Tensor, *, decay: float, read_NK: Tensor | None = None
    ) -> "PromptHistory":
        """Return the history after one generation batch: the prompt and the total reward of each completion.

        NaN: not scored, without effect. The columns ``read_NK`` (by default the totals) show contrast. Completions of
        a prompt form groups in their order; the last may be short, and counts by its share.
        """
        if len(index_N) != len(totals_N):
            raise ValueError(f"a history observes {len(totals_N)} totals of {len(index_N)} completions.")
        totals = totals_N.detach().cpu().double()
        read = totals.unsqueeze(1) if read_NK is None else read_NK.detach().cpu().double()
        scored = totals.isfinite()
        updated = {name: getattr(self, name).clone() for name in EVIDENCE}
        of_prompt: dict[int, list[int]] = {}
        for row, prompt in enumerate(index_N):
            of_prompt.setdefault(int(prompt), []).append(row)
        for prompt, every in of_prompt.items():
            updated["drawn"][prompt] += len(every) / self.num_generations
            members = [row for row in every if scored[row]]
            if not members:
                continue
            for name in ("counts", "sums", "groups", "live"):
                updated[name][prompt] *= decay
            updated["counts"][prompt] += len(members)
            updated["sums"][prompt] += totals[members].sum()
            for start in range(0, len(members), self.num_generations):
                group = members[start : start + self.num_generations]
                share = len(group) / self.num_generations
                contrast = _differs(read[group])
                updated["groups"][prompt] += 1 if contrast else share
                updated["live"][prompt] += contrast
        return replace(self, **updated, **self._range(totals[scored]))

    def _range(self, totals: Tensor) -> dict[str, Any]:
        """Bounds of all totals, and ``graded``."""
        ends = [] if math.isnan(self.low) else [self.low, self.high]
        values: list[float] = []
        for value in sorted({*ends, *totals.tolist()}):
            if not values or value - values[-1] > TOLERANCE * max(1.0, abs(value)):
                values.append(value)
        if not values:
            return {}
        return {"low": values[0], "high": values[-1], "graded": self.graded or len(values) > 2}

    def copy(self) -> "PromptHistory":
        """Return a copy with new tensors."""
        return replace(self, **{name: getattr(self, name).clone() for name in (*EVIDENCE, "rows")})

    def take(self, order: Sequence[int] | Tensor) -> "PromptHistory":
        """Return the history of the prompts ``order``, in that order."""
        places = torch.as_tensor(order, dtype=torch.long)
        chosen: dict[str, Any] = {
            spec.name: getattr(self, spec.name)[places]
            for spec in fields(self)
            if isinstance(getattr(self, spec.name), Tensor)
        }
        columns = {name: [values[place] for place in places.tolist()] for name, values in self.columns.items()}
        return replace(self, **chosen, columns=columns)


EVIDENCE = ("counts", "sums", "groups", "live", "drawn")
"""Attributes with the evidence on each prompt."""


def _differs(values_MK: Tensor) -> bool:
    """Return True if a column has two different values; NaN is no value."""
    present = ~values_MK.isnan()
    high = values_MK.masked_fill(~present, -math.inf).amax(dim=0)
    low = values_MK.masked_fill(~present, math.inf).amin(dim=0)
    largest = torch.maximum(high.abs(), low.abs()).clamp(min=1)
    return bool(((high - low) > TOLERANCE * largest).any())

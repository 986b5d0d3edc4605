"""The history of the prompts of a dataset: decayed counts of what their completions were rewarded with.

A prompt that several rows hold is one prompt. Evidence decays by visits: a generation batch that has completions of a
prompt leaves ``decay`` of what was known of it before.
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
    """16 bytes that a prompt is known by, in any process and release: of its plain JSON.

    >>> digest_of("1+1=").hex()[:8]
    '2153da11'
    """
    text = json.dumps(prompt, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).digest()[:16]


@dataclass(frozen=True)
class PromptHistory:
    """What is known of each of P prompts; all tensors are float64 of shape (P,), and all 0 for one that is unseen.

    Attributes:
        counts: completions that were scored, decayed.
        sums: the sum of their total rewards, decayed.
        groups: groups of ``num_generations`` completions, decayed.
        live: those of them with contrast, decayed.
        drawn: groups drawn, not decayed.
        rows: rows of the dataset that hold the prompt.
        num_generations: completions of a group.
        low: the smallest total reward seen; NaN: none was.
        high: the largest.
        graded: more than two different totals were seen, so that there is no pass rate.
        progress: share of the run's steps that is done.
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
        """The history before anything is drawn, of prompts that stand in so many rows each.

        >>> len(PromptHistory.empty([1, 1, 2], num_generations=8))
        3
        """
        held = torch.as_tensor(rows, dtype=torch.float64)
        none = torch.zeros_like(held)
        return cls(none, none, none, none, none, held, num_generations, columns=columns or {})

    @classmethod
    def of(
        cls,
        rewards: Sequence[Sequence[float]],
        *,
        num_generations: int | None = None,
        progress: float = 0.0,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> "PromptHistory":
        """A history from plain lists, for trying things: the total rewards of one group of each prompt.

        >>> history = PromptHistory.of([[1, 1], [1, 0], []])
        >>> history.pass_rates().tolist()
        [1.0, 0.5, nan]
        """
        size = num_generations or max(2, *map(len, rewards), 2)
        start = cls.empty([1] * len(rewards), size, columns)
        index = [prompt for prompt, given in enumerate(rewards) for _ in given]
        totals = torch.tensor([float(reward) for given in rewards for reward in given], dtype=torch.float64)
        return replace(start.observed(index, totals, decay=1.0), progress=progress)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def seen(self) -> Tensor:
        """(P,) bool: a completion was scored."""
        return self.counts > 0

    def passes(self) -> Tensor:
        """(P,) decayed count of the completions with the higher one of two totals."""
        if self.low == self.high:  # one value so far: nothing is right that is rewarded with 0 or less
            return self.counts * float(self.high > 0)
        if math.isnan(self.low):
            return torch.zeros_like(self.counts)
        return ((self.sums - self.low * self.counts) / (self.high - self.low)).clamp(min=0).minimum(self.counts)

    def pass_rates(self) -> Tensor:
        """(P,) decayed pass rate; of graded rewards the mean, as a share of the range seen. NaN: unseen."""
        return self.passes() / self.counts.masked_fill(~self.seen, math.nan)

    def impossible(self) -> Tensor:
        """(P,) bool: seen, next to no contrast, and rewards at the lower end: none of 2G completions would pass."""
        return self._quiet() & (self.pass_rates() < 0.5)

    def died_out(self) -> Tensor:
        """(P,) bool: seen, next to no contrast, and rewards at the upper end."""
        return self._quiet() & (self.pass_rates() >= 0.5)

    def _quiet(self) -> Tensor:
        if self.graded:
            return self.seen & (self.live < 0.1 * self.groups)
        rate, edge = self.pass_rates(), 1 / (2 * self.num_generations)
        return self.seen & ((rate < edge) | (rate > 1 - edge))

    def observed(
        self,
        index_N: Sequence[int],
        totals_N: Tensor,
        *,
        decay: float,
        read_NK: Tensor | None = None,
    ) -> "PromptHistory":
        """The history after one generation batch: completions by the prompt they are of, and their total rewards.

        NaN: not scored, which counts for nothing. Contrast is told by the columns ``read_NK``, the totals unless given.
        Completions of a prompt make groups in their order; the last may be short, and counts by its share.
        """
        if len(index_N) != len(totals_N):
            raise ValueError(f"a history observes {len(totals_N)} totals of {len(index_N)} completions.")
        totals = totals_N.detach().cpu().double()
        read = totals.unsqueeze(1) if read_NK is None else read_NK.detach().cpu().double()
        scored = totals.isfinite()
        fresh = {name: getattr(self, name).clone() for name in EVIDENCE}
        of_prompt: dict[int, list[int]] = {}
        for row, prompt in enumerate(index_N):
            of_prompt.setdefault(int(prompt), []).append(row)
        for prompt, every in of_prompt.items():
            fresh["drawn"][prompt] += len(every) / self.num_generations
            members = [row for row in every if scored[row]]
            if not members:
                continue
            for name in ("counts", "sums", "groups", "live"):
                fresh[name][prompt] *= decay
            fresh["counts"][prompt] += len(members)
            fresh["sums"][prompt] += totals[members].sum()
            for start in range(0, len(members), self.num_generations):
                group = members[start : start + self.num_generations]
                share = len(group) / self.num_generations
                contrast = _differs(read[group])
                fresh["groups"][prompt] += 1 if contrast else share
                fresh["live"][prompt] += contrast
        return replace(self, **fresh, **self._range(totals[scored]))

    def _range(self, totals: Tensor) -> dict[str, Any]:
        """Bounds of all totals, and whether there are more than two of them."""
        ends = [] if math.isnan(self.low) else [self.low, self.high]
        values: list[float] = []
        for value in sorted({*ends, *totals.tolist()}):
            if not values or value - values[-1] > TOLERANCE * max(1.0, abs(value)):
                values.append(value)
        if not values:
            return {}
        return {"low": values[0], "high": values[-1], "graded": self.graded or len(values) > 2}

    def copy(self) -> "PromptHistory":
        """The same with tensors of its own."""
        return replace(self, **{name: getattr(self, name).clone() for name in (*EVIDENCE, "rows")})

    def take(self, order: Sequence[int] | Tensor) -> "PromptHistory":
        """The prompts ``order``, in that order."""
        places = torch.as_tensor(order, dtype=torch.long)
        chosen: dict[str, Any] = {
            spec.name: getattr(self, spec.name)[places]
            for spec in fields(self)
            if isinstance(getattr(self, spec.name), Tensor)
        }
        columns = {name: [values[place] for place in places.tolist()] for name, values in self.columns.items()}
        return replace(self, **chosen, columns=columns)


EVIDENCE = ("counts", "sums", "groups", "live", "drawn")
"""Attributes of a history that say what is known of each prompt."""


def _differs(values_MK: Tensor) -> bool:
    """Some column has two values that differ; NaN is no value."""
    known = ~values_MK.isnan()
    high = values_MK.masked_fill(~known, -math.inf).amax(dim=0)
    low = values_MK.masked_fill(~known, math.inf).amin(dim=0)
    largest = torch.maximum(high.abs(), low.abs()).clamp(min=1)
    return bool(((high - low) > TOLERANCE * largest).any())

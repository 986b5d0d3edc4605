"""The input of advantage estimators: the rewards of all ranks' completions, and the scores of their steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_plus.advantages.steps import StepScores, as_tensor, describe, fail, float_dtype, refuse

__all__ = ["PENALTY", "TRAINABLE", "RewardTable", "StepScores", "token_rewards", "values_of"]

TRAINABLE = "trainable"
"""The extra, (N, T) bool, of the completion tokens that are trained on (tool results are not)."""
PENALTY = "penalty"
"""The extra, (N, T), of a KL term in the reward, token by token; its sum is in the rewards, too."""


@dataclass(frozen=True, eq=False)
class RewardTable:
    """The input of estimators: the completions of all ranks.

    Floats become float32 unless they are float64; integers of any width become int64. Estimators get the table in
    float64.

    Attributes:
        rewards: (N, K); NaN: this verifier does not apply to this completion.
        weights: (K,)
        groups: (N,) id of the prompt's group: grouping is by id, never by position.
        lengths: (N,) completion tokens.
        truncated: (N,) bool, completions cut off at the maximal length.
        values: (N, T) a critic's value of the state before each token; None without a critic. Tokens that are not
            trained on may have any number.
        extras: further tensors whose first dimension is N. ``trainable`` (N, T) bool marks the tokens trained on.
    """

    rewards: Tensor
    weights: Tensor
    groups: Tensor
    lengths: Tensor
    steps: StepScores | None = None
    names: tuple[str, ...] = ()
    truncated: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    values: Tensor | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        dtype = float_dtype(
            self.rewards, self.steps.scores if isinstance(self.steps, StepScores) else None, self.values
        )
        put(self, "rewards", as_tensor("RewardTable.rewards", self.rewards, 2, dtype))
        put(self, "weights", as_tensor("RewardTable.weights", self.weights, 1, dtype))
        put(self, "groups", as_tensor("RewardTable.groups", self.groups, 1, torch.long))
        put(self, "lengths", as_tensor("RewardTable.lengths", self.lengths, 1, torch.long))
        put(self, "names", tuple(self.names))
        put(self, "extras", dict(self.extras))
        if self.steps is not None and not isinstance(self.steps, StepScores):
            raise TypeError(f"RewardTable.steps: expected StepScores or None, got {type(self.steps).__name__}.")
        if self.steps is not None:
            put(self, "steps", replace(self.steps, scores=self.steps.scores.to(dtype)))
        if self.values is not None:
            put(self, "values", as_tensor("RewardTable.values", self.values, 2, dtype))
        self._check_shapes()
        self._check_values()

    def _check_shapes(self) -> None:
        count, kinds = self.rewards.shape
        for name in ("groups", "lengths"):
            if getattr(self, name).shape != (count,):
                fail(f"RewardTable.{name}", f"{count} values, one a completion", tuple(getattr(self, name).shape))
        if self.weights.shape != (kinds,):
            fail("RewardTable.weights", f"{kinds} values, one a reward", tuple(self.weights.shape))
        if self.names and len(self.names) != kinds:
            fail("RewardTable.names", f"{kinds} names, one a reward", self.names)
        cut: Any = self.truncated
        if cut is not None and (getattr(cut, "dtype", None) is not torch.bool or cut.shape != (count,)):
            fail("RewardTable.truncated", f"a bool tensor of shape ({count},)", describe(cut))
        if self.values is not None and (len(self.values) != count or self.values.shape[1] < self.width):
            fail("RewardTable.values", f"{count} rows of at least {self.width} tokens", tuple(self.values.shape))
        for name, extra in self.extras.items():
            if not isinstance(extra, Tensor) or extra.dim() < 1 or len(extra) != count:
                fail(f"RewardTable.extras[{name!r}]", f"a tensor of {count} rows", describe(extra))
        for name, value in self._tensors():
            if value.device != self.rewards.device:
                fail(f"RewardTable.{name}", f"the device of the rewards ({self.rewards.device})", value.device)

    def _check_values(self) -> None:
        if bool((bad := self.rewards.isinf()).any()):
            row, kind = bad.nonzero()[0].tolist()
            name = f" ({self.names[kind]})" if self.names else ""
            fail(
                "RewardTable.rewards",
                "finite numbers, or NaN where a reward does not apply",
                f"{self.rewards[row, kind]} from reward {kind}{name} for completion {row}",
            )
        refuse(~self.weights.isfinite(), self.weights, "RewardTable.weights", "finite numbers", "reward")
        refuse(self.lengths < 0, self.lengths, "RewardTable.lengths", "0 or more tokens", "completion")
        if self.steps is not None:
            rows, count = self.steps.rows, len(self.rewards)
            refuse((rows < 0) | (rows >= count), rows, "StepScores.rows", f"completions 0 to {count - 1}", "step")
        mask, penalty = self.extras.get(TRAINABLE), self.extras.get(PENALTY)
        if penalty is not None and (penalty.dim() != 2 or penalty.shape[1] < self.width):
            fail(f"RewardTable.extras[{PENALTY!r}]", f"numbers of at least {self.width} columns", describe(penalty))
        if mask is not None and (mask.dtype is not torch.bool or mask.dim() != 2 or mask.shape[1] < self.width):
            fail(f"RewardTable.extras[{TRAINABLE!r}]", f"bool of at least {self.width} columns", describe(mask))
        if self.values is not None:
            bad = ~self.values[:, : self.width].isfinite() & self.trainable()
            if bool(bad.any()):
                row, token = bad.nonzero()[0].tolist()
                value = self.values[row, token].item()
                fail("RewardTable.values", "finite numbers", f"{value} for token {token} of completion {row}")

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """Every tensor of the table except the rewards, with its name."""
        named: list[tuple[str, Any]] = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "rewards"]
        if self.steps is not None:
            named += [(f"steps.{name}", getattr(self.steps, name)) for name in ("rows", "scores", "spans", "states")]
        named += [(f"extras[{name!r}]", value) for name, value in self.extras.items()]
        return [(name, value) for name, value in named if isinstance(value, Tensor)]

    @classmethod
    def of(
        cls,
        rewards: Sequence[Any] | Tensor,
        *,
        groups: Sequence[int] | Tensor | None = None,
        lengths: Sequence[int] | Tensor | None = None,
        steps: StepScores | Sequence[Sequence[tuple[Any, ...]]] | None = None,
        weights: Sequence[float] | Tensor | None = None,
        names: Sequence[str] = (),
        truncated: Sequence[bool] | Tensor | None = None,
        extras: Mapping[str, Tensor] | None = None,
        values: Sequence[Sequence[float]] | Tensor | None = None,
    ) -> "RewardTable":
        """Return a table from plain lists, for experiments.

        >>> table = RewardTable.of([1, 1, 1, 0])
        >>> table.totals(), table.groups
        (tensor([1., 1., 1., 0.]), tensor([0, 0, 0, 0]))

        A completion has one reward or a list of them; None: does not apply. Its steps may be a list of (score, first
        token, one-past-last token), each followed by the key of its state or None. By default all are one group,
        weights are 1, and a completion's length is the number of its values or the end of its last step, at least 1.
        """
        rewards = rewards if isinstance(rewards, Tensor) else _floats(rewards)
        rewards = rewards.unsqueeze(1) if rewards.dim() == 1 else rewards
        count, kinds = rewards.shape if rewards.dim() == 2 else (len(rewards), 1)
        if steps is not None and not isinstance(steps, StepScores):
            steps = _steps(steps)
        at = values if values is None or isinstance(values, Tensor) else _ragged(values, rewards.device)
        if lengths is None:
            ends = [1] * count
            if values is not None and at is not None and at.dim() == 2 and len(at) == count:
                ends = [max(1, len(row)) for row in values]
            for row, end in zip(
                *((steps.rows.tolist(), steps.spans[:, 1].tolist()) if steps else ((), ())), strict=True
            ):
                if 0 <= row < count:
                    ends[row] = max(ends[row], end)
            lengths = torch.tensor(ends, dtype=torch.long)
        device = rewards.device
        return cls(
            rewards=rewards,
            weights=torch.ones(kinds, device=device) if weights is None else torch.as_tensor(weights, device=device),
            groups=torch.zeros(count, dtype=torch.long, device=device) if groups is None else _integers(groups, device),
            lengths=_integers(lengths, device),
            steps=steps if steps is None else steps.to(device=device),
            names=tuple(names),
            truncated=None if truncated is None else torch.as_tensor(truncated, device=device),
            extras=extras or {},
            values=at,
        )

    @property
    def width(self) -> int:
        """T: tokens of the longest completion."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    def scorable(self) -> Tensor:
        """(N,) bool: a reward applies to the completion."""
        return ~self.rewards.isnan().all(dim=1)

    def totals(self) -> Tensor:
        """(N,) weighted sum of the rewards that apply; NaN if none does."""
        total_N = (self.rewards.nan_to_num(nan=0.0) * self.weights).sum(dim=1)
        return total_N.masked_fill(~self.scorable(), torch.nan)

    def trainable(self) -> Tensor:
        """(N, T) bool: the tokens of each completion that are trained on."""
        inside_NT = torch.arange(self.width, device=self.lengths.device) < self.lengths[:, None]
        mask = self.extras.get(TRAINABLE)
        return inside_NT if mask is None else inside_NT & mask[:, : self.width]

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "RewardTable":
        """Return the table on another device, or with its floats in another precision (float32 or float64)."""

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

        moved = {f.name: move(getattr(self, f.name)) for f in fields(self)}
        moved["steps"] = None if self.steps is None else self.steps.to(device=device, dtype=dtype)
        moved["extras"] = {name: move(extra) for name, extra in self.extras.items()}
        return replace(self, **moved)


def _steps(of_rows: Sequence[Sequence[tuple[Any, ...]]]) -> StepScores:
    """Steps from (score, first token, one-past-last token), with or without a state."""
    flat = [(row, *step) for row, of_row in enumerate(of_rows) for step in of_row]
    states = [step[4] if len(step) > 4 else None for step in flat]
    has_states = any(state is not None for state in states)
    return StepScores(
        rows=torch.tensor([row for row, *_ in flat], dtype=torch.long),
        scores=_floats([step[1] for step in flat]),
        spans=torch.tensor([[start, end] for _, _, start, end, *_ in flat], dtype=torch.long).reshape(-1, 2),
        states=torch.tensor([-1 if state is None else state for state in states]) if has_states else None,
    )


def _floats(values: Sequence[Any]) -> Tensor:
    def plain(value: Any) -> Any:
        if value is None:
            return float("nan")
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    try:
        return torch.tensor([plain(value) for value in values], dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"RewardTable.of: expected numbers or None, equally many a completion, got {values!r}."
        ) from error


def _ragged(values: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    try:
        rows = [torch.tensor(row, dtype=torch.float32, device=device).reshape(len(row)) for row in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"RewardTable.of: expected a list of numbers a completion as values, got {values!r}."
        ) from error
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 0, device=device)


def _integers(values: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    tensor = torch.as_tensor(values, device=device)
    return tensor if tensor.numel() else tensor.long()


def token_rewards(table: RewardTable) -> Tensor:
    """(N, T) rewards token by token: the penalty of each token, and on the last trained one the rest of the total.

    >>> token_rewards(RewardTable.of([0.7], lengths=[3], extras={PENALTY: torch.tensor([[0.0, 0.25, 0.25]])}))
    tensor([[ 0.0000, -0.2500,  0.9500]])

    NaN on the last trained token if no reward applies.
    """
    trainable_NT = table.trainable()
    penalty_NT = table.extras.get(PENALTY, table.rewards.new_zeros(trainable_NT.shape))[:, : table.width]
    own_NT = torch.where(trainable_NT, -penalty_NT.to(table.rewards), 0.0)
    last_NT = trainable_NT & (trainable_NT.flip(1).cumsum(1).flip(1) == 1)
    return own_NT + torch.where(last_NT, (table.totals() - own_NT.sum(1))[:, None], 0.0)


def values_of(table: RewardTable) -> Tensor:
    """Return the critic's values of the table; raise if there are none."""
    if table.values is None:
        raise ValueError(
            "this estimator reads a critic's values, but table.values is None: set critic in the config, or give "
            "RewardTable.of(..., values=[[...], ...]), one value a token."
        )
    return table.values

"""Log-probabilities within a support: the distribution that truncated sampling drew from.

Where top-k, top-p or min-p leave the tokens S, token x is drawn with probability p(x) / p(S). That is what is scored,
by whatever model: the policy now and before, and a reference, so that their KL divergence is finite, and 0 where both
are equal. The gradient flows through p(S).

`TruncatedModel` takes the place of a model. TRL 1.14 reads its logits: those outside get a value that no softmax sees. TRL
1.16 has the model score its hidden states by a function, which is replaced for the length of the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from grpo_plus import _trl
from grpo_plus.engine.forward import Head
from grpo_plus.engine.pack import Packed

_OUTSIDE = -1e30
"""A logit that no softmax sees, whatever the temperature; with infinity the entropy would be 0 times infinity."""

_ELEMENTS = 2**24
"""Logits that are held at once."""

_WIDE_PRODUCTS = torch.__version__ >= "2.8"
"""Whether CUDA's products of 16-bit numbers come in 32 bits."""


class AllowedMask(Protocol):
    """The tokens that could be drawn at places of a batch, which count through its (B, C) completion tokens."""

    def allowed(self, places: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """(N, V) bool."""
        ...


class ExcludedMass:
    """The mean probability outside of the supports, under the model that was scored last."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | float = 0.0
        self._count = 0

    def add(self, outside_N: torch.Tensor) -> None:
        """Count some tokens."""
        self._sum = self._sum + outside_N.detach().sum()
        self._count += len(outside_N)

    @property
    def mean(self) -> float | None:
        """None where no token was scored."""
        return float(self._sum) / self._count if self._count else None


def truncated_rows(
    model: Any, support: AllowedMask, rows: Sequence[int], kept: int, *, width: int, head: Head, tally: ExcludedMass
) -> "TruncatedModel":
    """A model for TRL's own passes over rows of a batch of so many completion columns, the first ``kept`` of them."""
    index = torch.tensor(list(rows))[:, None]
    return TruncatedModel(model, support, index * width + torch.arange(kept), head, tally, shifted=True)


def truncated_packed(
    model: Any, support: AllowedMask, packed: Packed, *, head: Head, tally: ExcludedMass
) -> "TruncatedModel":
    """A model for one pass over packed rows."""
    places = torch.full_like(packed.input_ids, -1)
    places.view(-1)[packed.scored] = packed.target
    return TruncatedModel(model, support, places, head, tally, shifted=False)


class TruncatedModel:
    """A model whose next tokens come from supports.

    ``places``, (R, L), are those of all rows that will be scored, in the order of the calls, each of which takes as
    many rows as it has: the place of the token that a position predicts, -1 for none. Positions are all of a row, or,
    ``shifted``, the L before its last one, as TRL's passes have them. ``tally`` is told the probability outside.
    """

    def __init__(
        self, model: Any, support: AllowedMask, places: torch.Tensor, head: Head, tally: ExcludedMass, *, shifted: bool
    ) -> None:
        self._model = model
        self._support = support
        self._places = places
        self._head = head
        self._tally = tally
        self._shifted = shifted
        self._next = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, **inputs: Any) -> Any:
        """Run the model on the next rows."""
        rows = len(inputs["input_ids"])
        places_RL = self._places[self._next : self._next + rows].to(inputs["input_ids"].device)
        self._next += rows
        if not self._head.fused:
            outputs = self._model(**inputs)
            outputs.logits = self._masked(outputs.logits, places_RL)
            return outputs
        labels = inputs["labels"][:, 1:] if self._shifted else inputs["shift_labels"]
        unseen = labels.shape[1] - places_RL.shape[1]
        places_RS = torch.nn.functional.pad(places_RL, (unseen, 0), value=-1)
        score = _Fused(self._support, places_RS, labels != -100, self._tally)
        with _trl.fused_head(score):
            return self._model(**inputs)

    def _masked(self, logits_RSV: torch.Tensor, places_RL: torch.Tensor) -> torch.Tensor:
        width, vocabulary = logits_RSV.shape[1:]
        left = width - places_RL.shape[1] - 1 if self._shifted else 0
        right = width - places_RL.shape[1] - left
        places_M = torch.nn.functional.pad(places_RL, (left, right), value=-1).reshape(-1)
        flat_MV = logits_RSV.reshape(-1, vocabulary)
        where = (places_M >= 0).nonzero()[:, 0]
        outside_MV = torch.zeros_like(flat_MV, dtype=torch.bool)
        for part in torch.split(where, max(1, _ELEMENTS // vocabulary)):
            outside = ~self._support.allowed(places_M[part], vocabulary)
            outside_MV[part] = outside
            with torch.no_grad():
                chances = (flat_MV[part].float() / self._head.temperature).softmax(-1)
                self._tally.add((chances * outside).sum(-1))
        return flat_MV.masked_fill(outside_MV, _OUTSIDE).view_as(logits_RSV)


class _Fused:
    """What TRL 1.16 has hidden states scored by, in one pass over some rows."""

    def __init__(
        self, support: AllowedMask, places_RS: torch.Tensor, scored_RS: torch.Tensor, tally: ExcludedMass
    ) -> None:
        self._support = support
        self._places = places_RS
        self._scored = scored_RS
        self._tally = tally

    def __call__(
        self, hidden_MH: torch.Tensor, targets_M: torch.Tensor, head: _trl.FusedHead
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of M positions: those that are scored, or all of them."""
        scored_M = self._scored.to(hidden_MH.device).reshape(-1)
        places_M = self._places.to(hidden_MH.device).reshape(-1)
        if len(hidden_MH) != len(scored_M):
            places_M, scored_M = places_M[scored_M], scored_M[scored_M]
        index = (scored_M & (places_M >= 0)).nonzero()[:, 0]
        how = _Scoring(head, self._support, places_M[index], targets_M[index])
        inputs = (hidden_MH[index], head.weight, head.bias)
        logps, entropies, outside = _TruncatedLogps.apply(*inputs, how)  # type: ignore[no-untyped-call]
        self._tally.add(outside)
        zeros_M = torch.zeros(len(hidden_MH), device=logps.device)
        return zeros_M.index_put((index,), logps.float()), zeros_M.index_put((index,), entropies.float())


@dataclass(frozen=True)
class _Scoring:
    """How N positions are scored."""

    head: _trl.FusedHead
    support: AllowedMask
    places: torch.Tensor
    targets: torch.Tensor

    def logits(self, product_NV: torch.Tensor, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the product with the head's weight, and the same with what is outside out of sight."""
        head = self.head
        logits_NV = product_NV if product_NV.dtype == torch.float64 else product_NV.float()
        if head.softcap is not None:
            logits_NV = torch.tanh(logits_NV * (head.scale / head.softcap)) * (head.softcap / head.temperature)
        elif head.scale != head.temperature:
            logits_NV = logits_NV * (head.scale / head.temperature)
        outside_NV = ~self.support.allowed(self.places[part], logits_NV.shape[1])
        return logits_NV, logits_NV.masked_fill(outside_NV, _OUTSIDE)

    def slope(self, logits_NV: torch.Tensor) -> torch.Tensor | float:
        """The derivative of logits by the product."""
        head = self.head
        steep = head.scale / head.temperature
        return steep if head.softcap is None else steep * (1 - (logits_NV * (head.temperature / head.softcap)).square())

    def scores(self, product_NV: torch.Tensor, part: slice) -> tuple[torch.Tensor, ...]:
        """Log-probabilities and entropies within the supports, the probability outside, and the log of the sum."""
        logits_NV, within_NV = self.logits(product_NV, part)
        total_N, everything_N = within_NV.logsumexp(-1), logits_NV.logsumexp(-1)
        logps_N = within_NV.gather(-1, self.targets[part][:, None])[:, 0] - total_N
        chances_NV = (within_NV - total_N[:, None]).exp_()
        entropies_N = total_N - chances_NV.mul_(within_NV).sum(-1)
        return logps_N, entropies_N, -torch.expm1(total_N - everything_N), total_N


class _TruncatedLogps(torch.autograd.Function):
    """A few positions at a time; their logits are made once more for the gradient, which is summed in float32."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, how: _Scoring
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.how, ctx.dtype = how, hidden_NH.dtype
        if torch.is_autocast_enabled(hidden_NH.device.type):
            ctx.dtype = torch.get_autocast_dtype(hidden_NH.device.type)
        weight, bias = _cast(weight_VH, bias_V, ctx.dtype)
        parts = [how.scores(_product(hidden_NH[part], weight, bias), part) for part in _parts(hidden_NH, weight_VH)]
        logps_N, entropies_N, outside_N, total_N = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, entropies_N, total_N)
        ctx.mark_non_differentiable(outside_N)
        return logps_N, entropies_N, outside_N

    @staticmethod
    def backward(ctx: Any, *pulls: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        *inputs, entropies_N, total_N = ctx.saved_tensors
        hidden_NH, weight_VH, bias_V = inputs
        wide = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
        sums = [
            torch.zeros_like(tensor, dtype=wide) if tensor is not None and needed else None
            for tensor, needed in zip(inputs, ctx.needs_input_grad, strict=False)
        ]
        by_logps_N, by_entropies_N = (total_N.new_zeros(()) if pull_N is None else pull_N for pull_N in pulls[:2])
        by_logps_N, by_entropies_N = by_logps_N.expand_as(total_N), by_entropies_N.expand_as(total_N)
        weight, bias = _cast(weight_VH, bias_V, ctx.dtype)
        for part in _parts(hidden_NH, weight_VH):
            product_NV = _product(hidden_NH[part], weight, bias)
            logits_NV, logps_NV = ctx.how.logits(product_NV, part)
            logps_NV -= total_N[part, None]
            pull_NV = logps_NV.exp()
            if pulls[1] is None:
                pull_NV *= -by_logps_N[part, None]
            else:
                logps_NV += entropies_N[part, None]
                pull_NV *= -(by_logps_N[part, None] + by_entropies_N[part, None] * logps_NV)
            pull_NV.scatter_add_(1, ctx.how.targets[part][:, None], by_logps_N[part, None])
            pull_NV = (pull_NV * ctx.how.slope(logits_NV)).to(ctx.dtype)
            if sums[0] is not None:
                sums[0][part] = pull_NV @ weight
            if sums[1] is not None:
                _add_product(sums[1], pull_NV.T, hidden_NH[part].to(pull_NV.dtype))
            if sums[2] is not None:
                sums[2] += pull_NV.sum(0, dtype=wide)
        back = [None if one is None else one.to(like.dtype) for one, like in zip(sums, inputs, strict=True)]
        return (*back, None)


def _parts(hidden_NH: torch.Tensor, weight_VH: torch.Tensor) -> list[slice]:
    step = max(1, _ELEMENTS // len(weight_VH))
    return [slice(start, start + step) for start in range(0, len(hidden_NH), step)] or [slice(0, 0)]


def _cast(
    weight_VH: torch.Tensor, bias_V: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return weight_VH.detach().to(dtype), None if bias_V is None else bias_V.detach().to(dtype)


def _product(hidden_NH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None) -> torch.Tensor:
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return torch.nn.functional.linear(hidden_NH.detach().to(weight_VH.dtype), weight_VH, bias_V)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a product to a total in wider numbers, without rounding it to narrow ones before."""
    if left.is_cuda and left.dtype in {torch.bfloat16, torch.float16} and _WIDE_PRODUCTS:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))

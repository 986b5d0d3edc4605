"""Log-probabilities of truncated sampling, over the allowed tokens.

If top-k, top-p or min-p allow the tokens S, token x has probability p(x) / p(S). All models are scored with it: the
policy, the old policy and a reference, so their KL divergence is finite, and 0 for equal models. The gradient includes
p(S).

`TruncatedModel` replaces a model. TRL 1.14 reads its logits: excluded ones get a value that vanishes in a softmax. In
TRL 1.16 the model scores its hidden states with a function, which is replaced during the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_plus.engine.forward import Head
from grpo_plus.trl.scoring import FusedHead, replace_fused_head

_OUTSIDE = -1e30
"""A logit that vanishes in a softmax at any temperature; infinity would make the entropy 0 times infinity."""

_ELEMENTS = 2**24
"""Most logits in memory at once."""

_WIDE_PRODUCTS = torch.__version__ >= "2.8"
"""CUDA's products of 16-bit numbers can be stored in 32 bits."""


class AllowedMask(Protocol):
    """The allowed tokens at flat (B, C) completion positions of a batch."""

    def mask(self, places: Tensor, vocabulary: int) -> Tensor:
        """Return the (N, V) bool mask of allowed tokens."""
        ...


class ExcludedMass:
    """The mean probability of excluded tokens under the model scored last."""

    def __init__(self) -> None:
        self._sum: Tensor | float = 0.0
        self._count = 0

    def add(self, outside_N: Tensor) -> None:
        """Add the excluded probability of some tokens."""
        self._sum = self._sum + outside_N.detach().sum()
        self._count += len(outside_N)

    @property
    def mean(self) -> float | None:
        """The mean; None without tokens."""
        return float(self._sum) / self._count if self._count else None


def truncated_rows(
    model: Any, allowed: AllowedMask, rows: Sequence[int], length: int, *, width: int, head: Head, mass: ExcludedMass
) -> "TruncatedModel":
    """Return a model for TRL's passes over rows with ``width`` completion columns, the first ``length`` scored."""
    index = torch.tensor(list(rows))[:, None]
    return TruncatedModel(model, allowed, index * width + torch.arange(length), head, mass, shifted=True)


class TruncatedModel:
    """A model restricted to the allowed next tokens.

    ``places``, (R, L), has the flat completion position of the token predicted at each position, -1 for none, for all
    rows in the order of the calls. Positions are all of a row or, if ``shifted``, the L before its last one, as in
    TRL's passes. The probability of excluded tokens is added to ``mass``.
    """

    def __init__(
        self, model: Any, allowed: AllowedMask, places: Tensor, head: Head, mass: ExcludedMass, *, shifted: bool
    ) -> None:
        self._model = model
        self._allowed = allowed
        self._places = places
        self._head = head
        self._mass = mass
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
        score = _Fused(self._allowed, places_RS, labels != -100, self._mass)
        with replace_fused_head(score):
            return self._model(**inputs)

    def _masked(self, logits_RSV: Tensor, places_RL: Tensor) -> Tensor:
        width, vocabulary = logits_RSV.shape[1:]
        left = width - places_RL.shape[1] - 1 if self._shifted else 0
        right = width - places_RL.shape[1] - left
        places_M = torch.nn.functional.pad(places_RL, (left, right), value=-1).reshape(-1)
        flat_MV = logits_RSV.reshape(-1, vocabulary)
        where = (places_M >= 0).nonzero()[:, 0]
        outside_MV = torch.zeros_like(flat_MV, dtype=torch.bool)
        for part in torch.split(where, max(1, _ELEMENTS // vocabulary)):
            outside = ~self._allowed.mask(places_M[part], vocabulary)
            outside_MV[part] = outside
            with torch.no_grad():
                chances = (flat_MV[part].float() / self._head.temperature).softmax(-1)
                self._mass.add((chances * outside).sum(-1))
        return flat_MV.masked_fill(outside_MV, _OUTSIDE).view_as(logits_RSV)


class _Fused:
    def __init__(self, allowed: AllowedMask, places_RS: Tensor, scored_RS: Tensor, mass: ExcludedMass) -> None:
        self._allowed = allowed
        self._places = places_RS
        self._scored = scored_RS
        self._mass = mass

    def __call__(self, hidden_MH: Tensor, targets_M: Tensor, head: FusedHead) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of M positions, the scored ones or all."""
        scored_M = self._scored.to(hidden_MH.device).reshape(-1)
        places_M = self._places.to(hidden_MH.device).reshape(-1)
        if len(hidden_MH) != len(scored_M):
            places_M, scored_M = places_M[scored_M], scored_M[scored_M]
        index = (scored_M & (places_M >= 0)).nonzero()[:, 0]
        how = _Scoring(head, self._allowed, places_M[index], targets_M[index])
        inputs = (hidden_MH[index], head.weight, head.bias)
        logps, entropies, outside = _TruncatedLogps.apply(*inputs, how)  # type: ignore[no-untyped-call]
        self._mass.add(outside)
        zeros_M = torch.zeros(len(hidden_MH), device=logps.device)
        return zeros_M.index_put((index,), logps.float()), zeros_M.index_put((index,), entropies.float())


@dataclass(frozen=True)
class _Scoring:
    head: FusedHead
    allowed: AllowedMask
    places: Tensor
    targets: Tensor

    def logits(self, product_NV: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Return the logits of a product with the head's weight, and the same with excluded tokens masked."""
        head = self.head
        logits_NV = product_NV if product_NV.dtype == torch.float64 else product_NV.float()
        if head.softcap is not None:
            logits_NV = torch.tanh(logits_NV * (head.scale / head.softcap)) * (head.softcap / head.temperature)
        elif head.scale != head.temperature:
            logits_NV = logits_NV * (head.scale / head.temperature)
        outside_NV = ~self.allowed.mask(self.places[part], logits_NV.shape[1])
        return logits_NV, logits_NV.masked_fill(outside_NV, _OUTSIDE)

    def slope(self, logits_NV: Tensor) -> Tensor | float:
        """Return the derivative of logits by the product."""
        head = self.head
        steep = head.scale / head.temperature
        return steep if head.softcap is None else steep * (1 - (logits_NV * (head.temperature / head.softcap)).square())

    def scores(self, product_NV: Tensor, part: slice) -> tuple[Tensor, ...]:
        """Return truncated log-probabilities and entropies, the excluded probability, and the log of the sum."""
        logits_NV, allowed_NV = self.logits(product_NV, part)
        total_N, everything_N = allowed_NV.logsumexp(-1), logits_NV.logsumexp(-1)
        logps_N = allowed_NV.gather(-1, self.targets[part][:, None])[:, 0] - total_N
        chances_NV = (allowed_NV - total_N[:, None]).exp_()
        entropies_N = total_N - chances_NV.mul_(allowed_NV).sum(-1)
        return logps_N, entropies_N, -torch.expm1(total_N - everything_N), total_N


class _TruncatedLogps(torch.autograd.Function):
    """Scores a few positions at a time; the backward pass recomputes their logits and sums in float32."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, how: _Scoring
    ) -> tuple[Tensor, ...]:
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
    def backward(ctx: Any, *pulls: Tensor | None) -> tuple[Tensor | None, ...]:
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


def _parts(hidden_NH: Tensor, weight_VH: Tensor) -> list[slice]:
    step = max(1, _ELEMENTS // len(weight_VH))
    return [slice(start, start + step) for start in range(0, len(hidden_NH), step)] or [slice(0, 0)]


def _cast(weight_VH: Tensor, bias_V: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return weight_VH.detach().to(dtype), None if bias_V is None else bias_V.detach().to(dtype)


def _product(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return torch.nn.functional.linear(hidden_NH.detach().to(weight_VH.dtype), weight_VH, bias_V)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product to a total of higher precision without rounding the product first."""
    if left.is_cuda and left.dtype in {torch.bfloat16, torch.float16} and _WIDE_PRODUCTS:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))

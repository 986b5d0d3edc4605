"""An objective: one ratio, one surrogate, at most one KL estimator and one reduction, composed."""

# ruff: noqa: RUF001 - formulas

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Counts, Metric, Terms, TokenBatch
from grpo_plus.objectives.group import GroupScores, row_pulls
from grpo_plus.objectives.kl import token_kl
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.ratio import token as token_ratio
from grpo_plus.objectives.reduce import masked
from grpo_plus.objectives.schedule import Constant, Schedule


class ObjectiveOutputError(ValueError, TypeError):
    """The output of an objective or of a piece is not valid for training."""


@dataclass(frozen=True)
class BoundPiece:
    """A piece with its keywords."""

    piece: Piece
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *arguments: Any) -> Any:
        """Call the piece."""
        return self.piece.fn(*arguments, **self.keywords)

    def formula(self) -> str:
        """Return the piece's formula with its keywords filled in."""
        values = {name: parameter.default for name, parameter in self.piece.keywords().items()} | dict(self.keywords)
        if "epsilon_low" in values and values.get("epsilon_high") is None:
            values["epsilon_high"] = values["epsilon_low"]
        if "length" in values and values["length"] is None:
            values["length"] = "max_completion_length"
        text = self.piece.formula or f"{self.piece.name}(…)"
        shown = text
        for name, value in values.items():
            shown = shown.replace(f"{{{name}}}", str(value))
        rest = [
            f"{name} = {value!r}" for name, value in values.items() if f"{{{name}}}" not in text and value is not None
        ]
        return shown + (f" [{', '.join(rest)}]" if rest else "")


@dataclass(frozen=True)
class KLTerm:
    """The estimate of the divergence from the reference, and its placement.

    Attributes:
        unbiased: multiply the estimate by the ratio, so that its gradient is that of its expectation: of the reverse
            KL for k1 and k3. Never for k2, which has that gradient without the ratio.
        placement: in the ``loss``, or taken from the ``reward`` before the advantages, which is right for k1 only.
    """

    estimator: BoundPiece
    unbiased: bool = True
    placement: Literal["loss", "reward"] = "loss"
    schedule: Schedule = field(default_factory=Constant)


@dataclass(frozen=True)
class Unreduced:
    """The loss of every token, with its KL estimates and metrics.

    Attributes:
        values: (B, T), minimised, exactly 0 outside the mask; times the share of the row.
        kl: (B, T) estimates, unweighted; None without a KL term in the loss.
        metrics: by logged name.
    """

    values: Tensor
    terms: Terms
    kl: Tensor | None
    metrics: Mapping[str, Metric]


@dataclass(frozen=True)
class Objective:
    """``loss = reduce(−surrogate + β·kl)``; frozen, pure, and built by `build_objective`.

    Attributes:
        name: the preset or user function.
        surrogate: the maximised piece, or a user's full loss.
        kl: the KL term; None if β is 0 or the objective has none.
        beta: TRL's `beta`, before its schedule.
        stop_fraction: share of settled tokens at which the remaining inner iterations are skipped; None for never.
    """

    name: str
    ratio: BoundPiece
    surrogate: BoundPiece
    reduce: BoundPiece
    kl: KLTerm | None = None
    beta: float = 0.0
    stop_fraction: float | None = None

    @property
    def kl_in_loss(self) -> bool:
        """True if the loss has a KL term."""
        return self.kl is not None and self.kl.placement == "loss"

    @property
    def kl_in_reward(self) -> bool:
        """True if the divergence of the sampled completions is taken from their rewards."""
        return self.kl is not None and self.kl.placement == "reward"

    @property
    def makes_targets(self) -> bool:
        """True if `make_targets` has to run once per generation batch."""
        return self.surrogate.piece.name == "target" and self.surrogate.piece.kind == "surrogate"

    @property
    def pulls_groups(self) -> bool:
        """True if the loss is one of groups: `pulls` has to run before each optimizer step."""
        return self.surrogate.piece.pulls is not None

    def pulls(self, scores: GroupScores) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return (N,) pulls and parts of the loss of all completions of a generation batch, and metrics."""
        assert self.surrogate.piece.pulls is not None
        return row_pulls(scores, partial(self.surrogate.piece.pulls, **self.surrogate.keywords))

    @property
    def needs_old_logps(self) -> bool:
        """True if log-probabilities from before the update must exist, even if TRL computes none."""
        return self.makes_targets or self.pulls_groups or self.kl_in_reward

    @property
    def zero_advantage_means_zero_gradient(self) -> bool:
        """True if a completion with zero advantages adds exactly nothing to the gradient."""
        return self.surrogate.piece.zero_advantage_means_zero_gradient and not self.kl_in_loss

    def values(self, batch: TokenBatch) -> Unreduced:
        """Return the loss of every token of a micro-batch."""
        rows, width = batch.logps.shape
        ratio = _shaped(self.ratio(batch), self.ratio, ((rows, width), (rows, 1)))
        _check_numbers(ratio, self.ratio, batch)
        piece = self.surrogate.piece
        output = self.surrogate(batch) if piece.kind == "loss" else self.surrogate(batch, ratio)
        terms = _terms(output, self.surrogate, batch)
        _check_numbers(terms.values, self.surrogate, batch)
        _check_gradient(terms.values, self.surrogate, batch.logps)
        values = terms.values if piece.kind == "loss" else -terms.values
        if batch.keep is not None:
            values = values * batch.keep
        if batch.focus is not None and not piece.focuses_itself:
            values = torch.where(batch.focus, values, 0.0)
        if batch.weights is not None and not piece.weighs_itself:
            values = values * batch.weights
        metrics = dict(terms.metrics)
        estimate = None
        if self.kl is not None and self.kl.placement == "loss":
            estimate = self._kl(batch, ratio)
            values = values + batch.beta * estimate
            metrics["kl"] = Metric(estimate)
        return Unreduced(batch.shared(masked(values, batch.mask)), terms, estimate, metrics)

    def loss(self, batch: TokenBatch) -> tuple[Tensor, Unreduced]:
        """Return the reduced loss of a micro-batch, and the unreduced loss."""
        unreduced = self.values(batch)
        loss = _shaped(self.reduce(unreduced.values, batch), self.reduce, ((),))
        _check_numbers(loss, self.reduce, batch)
        _check_gradient(loss, self.reduce, unreduced.values)
        return loss, unreduced

    def _kl(self, batch: TokenBatch, ratio: Tensor) -> Tensor:
        assert self.kl is not None
        if batch.ref_logps is None:
            raise ValueError(f"the objective {self.name!r} has a KL term, but the batch has no ref_logps.")
        estimate = token_kl(self.kl.estimator, batch.logps, batch.ref_logps, batch.mask)
        _check_numbers(estimate, self.kl.estimator, batch)
        if not self.kl.unbiased:
            return estimate
        return estimate * (ratio if self.ratio.piece.weighs_kl else token_ratio(batch))

    def formula(self) -> str:
        """Return the composed formula, for `check`."""
        piece = self.surrogate.piece
        lines = [f"objective {self.name}"]
        if piece.kind == "loss":
            inner = self.surrogate.formula()
            policy = "L"
            lines.append(f"  L = {inner}")
        else:
            policy = "−J"
            lines.append(f"  J = {self.surrogate.formula()}")
            if self.ratio.piece.name != "none" and not piece.ratios:
                lines.append(f"  r: {self.ratio.formula()}")
        total = policy
        if self.kl is not None:
            factor = ("·r" if self.ratio.piece.weighs_kl else "·ρ_t") if self.kl.unbiased else ""
            estimate = f"{self.kl.schedule.formula()}, β = {self.beta:g}"
            if self.kl.placement == "loss":
                total += f" + β_now·kl{factor}"
                lines += self._kl_remarks()
            else:
                lines.append("  R ← R − β_now·Σ_t kl(old, ref), before the advantages")
            lines.append(f"  kl = {self.kl.estimator.formula()}, β_now: {estimate}")
        reduction = "Σ_t w_t·(…) / Σ w, w = 1/occurrences of the node" if self.makes_targets else self.reduce.formula()
        lines.append(f"  loss = reduce({total}), reduce = {reduction}")
        if self.stop_fraction is not None:
            lines.append(f"  the inner iterations stop once {self.stop_fraction:g} of the pulled tokens have settled")
        return "\n".join(lines)

    def _kl_remarks(self) -> list[str]:
        """Remarks if the expected gradient of the KL term in the loss is not that of KL(π‖π_ref)."""
        assert self.kl is not None
        if self.kl.unbiased and self.ratio.piece.weighs_kl:
            return ["  kl times the ratio of the sequence, as TRL: one T-th of its correction, T tokens, is left"]
        if self.kl.estimator.piece.name == "k3" and not self.kl.unbiased:
            return ["  k3 without the ratio has the gradient of KL(π_ref‖π), not of KL(π‖π_ref)"]
        return []


def _shaped(output: Any, part: BoundPiece, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """The output of a ratio or a reduction; raises if it is no tensor of one of these shapes."""
    if isinstance(output, Tensor) and tuple(output.shape) in shapes:
        return output
    actual = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    raise ObjectiveOutputError(
        f"{_called(part)} returned {actual}, expected one of shape {' or '.join(map(str, shapes))}."
    )


def _check_numbers(output: Tensor, part: BoundPiece, batch: TokenBatch) -> None:
    """Raise if the output of a user's part for trained tokens is not finite or of no floating type.

    Built-in parts are not checked: that would synchronise with the device. Neither is a batch whose log-probabilities
    are not finite.
    """
    if part.piece.built_in:
        return
    if not output.is_floating_point():
        raise ObjectiveOutputError(f"{_called(part)} returned values of type {output.dtype}, expected a floating type.")
    counts = batch.mask if output.shape == batch.mask.shape else batch.mask.any(dim=1, keepdim=True)
    bad = ~output.detach().isfinite() & (counts if output.ndim else True)
    if bool(bad.any()) and bool(batch.logps.detach()[batch.mask].isfinite().all()):
        value = float(output.detach()[bad][0])
        raise ObjectiveOutputError(
            f"{_called(part)} returned {value} ({int(bad.sum())} of {bad.numel()} values are not finite), expected "
            "finite numbers: look for a division by zero, a logarithm of 0 or an exponential of a large number."
        )


def _check_gradient(output: Tensor, part: BoundPiece, source: Tensor) -> None:
    """Raise if the output of a user's part has no gradient but its argument has one."""
    if part.piece.built_in or output.requires_grad or not (source.requires_grad and torch.is_grad_enabled()):
        return
    argument = "values" if part.piece.kind == "reduce" else "batch.logps or the ratio"
    raise ObjectiveOutputError(
        f"{_called(part)} returned a tensor without a gradient, so nothing would be learned: compute it from "
        f"{argument} without detach, item or no_grad."
    )


def _called(part: BoundPiece) -> str:
    words = {"loss": "objective", "kl": "KL estimator", "reduce": "reduction"}
    return f"the {words.get(part.piece.kind, part.piece.kind)} {part.piece.name!r}"


def _terms(output: Any, part: BoundPiece, batch: TokenBatch) -> Terms:
    """The output of a surrogate as `Terms`, with a check of its shape: user functions may return tensors."""
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Mapping):
        values, metrics = output
        output = Terms(values, {name: m if isinstance(m, Metric) else Metric(m) for name, m in metrics.items()})
    elif isinstance(output, Tensor):
        output = Terms(output)
    if not isinstance(output, Terms):
        raise ObjectiveOutputError(
            f"{_called(part)} returned {type(output).__name__}, expected a (B, T) tensor, or a pair of one and a "
            "mapping of metric names to tensors."
        )
    rows, width = batch.logps.shape
    if not isinstance(output.values, Tensor) or output.values.shape not in ((rows, width), (rows, 1)):
        shape = tuple(output.values.shape) if isinstance(output.values, Tensor) else type(output.values).__name__
        raise ObjectiveOutputError(
            f"{_called(part)} returned values of shape {shape}, expected one for each token, {(rows, width)}, or for "
            f"each completion, {(rows, 1)}: they are reduced by the objective's own reduction."
        )
    return output


def reads_old_logps(objective: Objective) -> bool:
    """Return True if the gradient depends on the log-probabilities of the sampling policy.

    >>> from grpo_plus.objectives import build_objective
    >>> reads_old_logps(build_objective("grpo", beta=0.0)), reads_old_logps(build_objective("reinforce", beta=0.0))
    (True, False)

    True for a user's function that raises on the trial batch: another check reports its error.
    """
    if objective.pulls_groups:
        return True  # the pulls, which this batch lacks, depend on them
    logps = torch.tensor([[-1.0, -0.5], [-0.7, -2.0]])
    sign = torch.tensor([[1.0], [-1.0]])
    batch = TokenBatch(
        logps=logps,
        old_logps=logps,
        advantages=sign,
        mask=torch.ones(2, 2, dtype=torch.bool),
        counts=Counts(2.0, 4.0, 1.0),
        ref_logps=logps,
        prompt_tokens=torch.tensor([4, 4]),
        target_logps=logps + sign,
        target_sign=sign.expand(2, 2),
        target_weights=torch.ones(2, 2),
        max_completion_length=2,
    )
    try:
        return not torch.equal(
            _gradient(objective, batch), _gradient(objective, replace(batch, old_logps=logps - 0.05))
        )
    except Exception:  # noqa: BLE001 - a user's function may raise anything
        return True


def _gradient(objective: Objective, batch: TokenBatch) -> Tensor:
    logps = batch.logps.clone().requires_grad_()
    loss, _ = objective.loss(replace(batch, logps=logps))
    (gradient,) = torch.autograd.grad(loss, logps)
    return gradient

"""An objective: one ratio, one surrogate, at most one KL estimator and one reduction, composed."""

# ruff: noqa: RUF001 - formulas

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Metric, Terms, TokenBatch
from grpo_plus.objectives.group import GroupScores, row_pulls
from grpo_plus.objectives.kl import token_kl
from grpo_plus.objectives.pieces import Piece
from grpo_plus.objectives.ratio import token as token_ratio
from grpo_plus.objectives.reduce import masked
from grpo_plus.objectives.schedule import Constant, Schedule


class ObjectiveOutputError(ValueError, TypeError):
    """The output of an objective or of a piece cannot be trained on."""


@dataclass(frozen=True)
class Part:
    """A piece and the keywords it is called with."""

    piece: Piece
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *arguments: Any) -> Any:
        """Call the piece."""
        return self.piece.fn(*arguments, **self.keywords)

    def formula(self) -> str:
        """The piece's formula with its keywords filled in."""
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
    """The estimate of the divergence from the reference, and the place where it acts.

    Attributes:
        unbiased: multiply the estimate by the ratio, so that its gradient is that of what it estimates: of the reverse
            KL for k1 and k3. Never for k2, which has that gradient as it is.
        placement: in the ``loss``, or taken from the ``reward`` before the advantages, where only k1 is right.
    """

    estimator: Part
    unbiased: bool = True
    placement: Literal["loss", "reward"] = "loss"
    schedule: Schedule = field(default_factory=Constant)


@dataclass(frozen=True)
class Unreduced:
    """The loss of every token, and what came with it.

    Attributes:
        values: (B, T), minimised, exactly 0 outside the mask; times the share of the row.
        kl: (B, T) estimates, unweighted; None without a KL term in the loss.
        metrics: by the name they are logged under.
    """

    values: Tensor
    terms: Terms
    kl: Tensor | None
    metrics: Mapping[str, Metric]


@dataclass(frozen=True)
class Objective:
    """``loss = reduce(−surrogate + β·kl)``; frozen, pure, and built by `build_objective`.

    Attributes:
        name: the preset or user function it started from.
        surrogate: what is maximised, or a user's whole loss.
        kl: the KL term; None where β is 0 or the objective has none.
        beta: TRL's `beta`, before its schedule.
        stop_fraction: share of settled tokens at which the remaining inner iterations are skipped; None for never.
    """

    name: str
    ratio: Part
    surrogate: Part
    reduce: Part
    kl: KLTerm | None = None
    beta: float = 0.0
    stop_fraction: float | None = None

    @property
    def kl_in_loss(self) -> bool:
        """The loss has a KL term."""
        return self.kl is not None and self.kl.placement == "loss"

    @property
    def kl_in_reward(self) -> bool:
        """The divergence of the sampled completions is taken from their rewards."""
        return self.kl is not None and self.kl.placement == "reward"

    @property
    def makes_targets(self) -> bool:
        """`make_targets` has to run once per generation batch."""
        return self.surrogate.piece.name == "target" and self.surrogate.piece.kind == "surrogate"

    @property
    def pulls_groups(self) -> bool:
        """The loss is one of whole groups: `pulls` has to run before each optimizer step."""
        return self.surrogate.piece.pulls is not None

    def pulls(self, scores: GroupScores) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(N,) pulls and parts of the loss of all completions of a generation batch, and metrics."""
        assert self.surrogate.piece.pulls is not None
        return row_pulls(scores, partial(self.surrogate.piece.pulls, **self.surrogate.keywords))

    @property
    def needs_old_logps(self) -> bool:
        """Log-probabilities from before the update must exist, even where TRL makes none."""
        return self.makes_targets or self.pulls_groups or self.kl_in_reward

    @property
    def zero_advantage_means_zero_gradient(self) -> bool:
        """A completion with zero advantages adds exactly nothing to the gradient."""
        return self.surrogate.piece.zero_advantage_means_zero_gradient and not self.kl_in_loss

    def values(self, batch: TokenBatch) -> Unreduced:
        """The loss of every token of a micro-batch."""
        rows, width = batch.logps.shape
        ratio = _shaped(self.ratio(batch), self.ratio, ((rows, width), (rows, 1)))
        _check_numbers(ratio, self.ratio, batch)
        piece = self.surrogate.piece
        given = self.surrogate(batch) if piece.kind == "loss" else self.surrogate(batch, ratio)
        terms = _terms(given, self.surrogate, batch)
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
        """The reduced loss of a micro-batch, and what it came from."""
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
        """The composed formula, for `explain`."""
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
        """Remarks where the expected gradient of the KL term in the loss is not that of KL(π‖π_ref)."""
        assert self.kl is not None
        if self.kl.unbiased and self.ratio.piece.weighs_kl:
            return ["  kl times the ratio of the sequence, as TRL: one T-th of its correction, T tokens, is left"]
        if self.kl.estimator.piece.name == "k3" and not self.kl.unbiased:
            return ["  k3 without the ratio has the gradient of KL(π_ref‖π), not of KL(π‖π_ref)"]
        return []

    def relevant_fields(self) -> tuple[str, ...]:
        """The fields of TRL's config that this objective reads."""
        fields = ["beta", "num_iterations", "entropy_coef", "use_adaptive_entropy", "mask_truncated_completions"]
        fields.append("router_aux_loss_coef")
        if not (self.makes_targets or self.pulls_groups):
            fields += ["off_policy_mask_threshold", "top_entropy_quantile", "vllm_importance_sampling_correction"]
        if self.kl is not None:
            fields += ["sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"]
        if self.kl_in_loss and self.kl is not None and self.kl.estimator.piece.takes_ratio:
            fields.append("use_bias_correction_kl")
        if self.reduce.piece.name == "constant" and self.reduce.keywords.get("length") is None:
            fields.append("max_completion_length")
        return tuple(sorted(fields))


def _shaped(given: Any, part: Part, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """The output of a ratio or a reduction, refused unless it is a tensor of one of these shapes."""
    if isinstance(given, Tensor) and tuple(given.shape) in shapes:
        return given
    found = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    raise ObjectiveOutputError(
        f"{_called(part)} returned {found}, expected one of shape {' or '.join(map(str, shapes))}."
    )


def _check_numbers(given: Tensor, part: Part, batch: TokenBatch) -> None:
    """Refuse what a user's part returned for trained tokens if it is no finite number of a floating type.

    Built-in parts are not looked at: that would have the device wait. Nor is anybody blamed for a model whose own
    log-probabilities are not finite.
    """
    if part.piece.built_in:
        return
    if not given.is_floating_point():
        raise ObjectiveOutputError(f"{_called(part)} returned values of type {given.dtype}, expected a floating type.")
    counts = batch.mask if given.shape == batch.mask.shape else batch.mask.any(dim=1, keepdim=True)
    bad = ~given.detach().isfinite() & (counts if given.ndim else True)
    if bool(bad.any()) and bool(batch.logps.detach()[batch.mask].isfinite().all()):
        value = float(given.detach()[bad][0])
        raise ObjectiveOutputError(
            f"{_called(part)} returned {value} ({int(bad.sum())} of {bad.numel()} values are not finite), expected "
            "finite numbers: look for a division by zero, a logarithm of 0 or an exponential of a large number."
        )


def _check_gradient(given: Tensor, part: Part, source: Tensor) -> None:
    """Refuse what a user's part returned if its argument has a gradient and it has none: nothing would be learned."""
    if part.piece.built_in or given.requires_grad or not (source.requires_grad and torch.is_grad_enabled()):
        return
    argument = "values" if part.piece.kind == "reduce" else "batch.logps or the ratio"
    raise ObjectiveOutputError(
        f"{_called(part)} returned a tensor without a gradient, so nothing would be learned: compute it from "
        f"{argument} without detach, item or no_grad."
    )


def _called(part: Part) -> str:
    words = {"loss": "objective", "kl": "KL estimator", "reduce": "reduction"}
    return f"the {words.get(part.piece.kind, part.piece.kind)} {part.piece.name!r}"


def _terms(given: Any, part: Part, batch: TokenBatch) -> Terms:
    """The output of a surrogate as `Terms`, its shape checked: user functions may return tensors."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        values, metrics = given
        given = Terms(values, {name: m if isinstance(m, Metric) else Metric(m) for name, m in metrics.items()})
    elif isinstance(given, Tensor):
        given = Terms(given)
    if not isinstance(given, Terms):
        raise ObjectiveOutputError(
            f"{_called(part)} returned {type(given).__name__}, expected a (B, T) tensor, or a pair of one and a "
            "mapping of metric names to tensors."
        )
    rows, width = batch.logps.shape
    if not isinstance(given.values, Tensor) or given.values.shape not in ((rows, width), (rows, 1)):
        shape = tuple(given.values.shape) if isinstance(given.values, Tensor) else type(given.values).__name__
        raise ObjectiveOutputError(
            f"{_called(part)} returned values of shape {shape}, expected one for each token, {(rows, width)}, or for "
            f"each completion, {(rows, 1)}: they are reduced by the objective's own reduction."
        )
    return given

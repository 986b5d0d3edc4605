"""The contract of objectives, as checks for any objective, built in or not.

All checks look at `Objective.loss` and its gradient with respect to the log-probabilities, as used in training.
"""

import operator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Counts, TokenBatch
from grpo_plus.objectives.compose import build_objective, compose_objective
from grpo_plus.objectives.group import GroupScores
from grpo_plus.objectives.objective import Objective, Unreduced
from grpo_plus.testing.contract import Kit, Part, Subject, checks_of, label_of, leaves_alone

if TYPE_CHECKING:
    from collections.abc import Callable

_ROWS, _TOKENS = 5, 7
_GROUPS = (0, 0, 0, 1, 1)
_PADDING = 3
_FAR = 1000.0
_NEAR = 0.05


def check_objective(part: "str | Callable[..., Any]", /, *, beta: float = 0.0, **keywords: Any) -> None:
    """Run all checks of the contract on an objective.

    >>> check_objective("dapo")

    A function ``(batch, *, keywords)`` need not be registered. The keywords are those of ``objective`` in a
    config.

    Raises:
        AssertionError: lists every check that failed.
    """
    KIT.run((part, {**keywords, "beta": beta}))


@dataclass(frozen=True)
class Built:
    """An objective under test with its source: a name or a function."""

    source: Any
    objective: Objective
    beta: float


def sample_batch(built: Built, *, dtype: torch.dtype = torch.float32) -> TokenBatch:
    """A micro-batch with uneven rows, one without any trained token, advantages of both signs and 0."""
    random = torch.Generator().manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(_ROWS, _TOKENS, generator=random, dtype=torch.float64)

    old = -normal().abs() - 0.1
    mask = torch.arange(_TOKENS) < torch.tensor([[7], [3], [0], [5], [1]])
    sign = torch.where(normal() > 0, 1.0, -1.0) * (normal() > -0.5)
    weights = torch.where((sign != 0) & mask, 0.5 + normal().abs(), 0.0)
    tokens = weights.sum() if built.objective.makes_targets else mask.sum()
    tensors = {
        "logps": old + 0.2 * normal(),
        "old_logps": old,
        "advantages": torch.tensor([[1.5], [-0.5], [1.0], [0.0], [-2.0]], dtype=torch.float64),
        "ref_logps": old + 0.3 * normal(),
        "target_logps": old * torch.where(sign > 0, 0.5, 2.0),
        "target_sign": sign,
        "target_weights": weights,
    }
    return TokenBatch(
        **{name: tensor.to(dtype) for name, tensor in tensors.items()},
        mask=mask,
        counts=Counts(completions=_ROWS, tokens=tokens.to(dtype), prompts=2),
        beta=built.beta,
        prompt_tokens=torch.tensor([10, 10, 10, 6, 6]),
        max_completion_length=_TOKENS,
    )


def _with_pulls(objective: Objective, batch: TokenBatch) -> TokenBatch:
    """The batch with the pulls of its rows, if the loss is one of groups and all of their rows are present."""
    if not objective.pulls_groups or len(batch.logps) != _ROWS:
        return batch
    scores = GroupScores(
        groups=torch.tensor(_GROUPS),
        logps=torch.where(batch.mask, batch.logps.detach().double(), 0.0).sum(1),
        old_logps=torch.where(batch.mask, batch.old_logps.double(), 0.0).sum(1),
        lengths=batch.mask.sum(1),
        advantages=batch.advantages[:, 0],
    )
    pull, loss, _ = objective.pulls(scores)
    return replace(batch, pull=pull.to(batch.logps), group_loss=loss.to(batch.logps))


def _changed(batch: TokenBatch, change: "Callable[[Tensor], Tensor]") -> TokenBatch:
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch)}
    changes: dict[str, Any] = {name: change(value) for name, value in tensors.items() if isinstance(value, Tensor)}
    return replace(batch, **changes)


def _run(subject: Subject, batch: TokenBatch) -> tuple[Tensor, Tensor, Unreduced]:
    logps = batch.logps.clone().requires_grad_()
    objective: Objective = subject.part.objective
    batch = _with_pulls(objective, batch)
    try:
        loss, unreduced = objective.loss(replace(batch, logps=logps))
        (gradient,) = torch.autograd.grad(loss, logps, allow_unused=True) if loss.requires_grad else (None,)
    except Exception as error:
        raise AssertionError(f"raised {type(error).__name__}: {error}") from error
    return loss.detach(), torch.zeros_like(logps) if gradient is None else gradient, unreduced


def _on_policy(subject: Subject, drift: float = 0.0) -> TokenBatch:
    """A batch whose policy is the reference and, except for ``drift`` nats a token, the sampling policy.

    Its advantages outweigh all other terms.
    """
    batch = sample_batch(subject.part, dtype=torch.float64)
    logps = batch.old_logps + drift
    return replace(batch, logps=logps, ref_logps=logps, advantages=100 * batch.advantages)


def _same(got: Tensor, expected: Tensor, title: str, tolerance: float = 1e-5) -> None:
    slack = tolerance * expected.abs().max().nan_to_num(nan=0.0).clamp(min=1e-8)
    if not bool(((got - expected).abs() <= slack + tolerance * expected.abs()).all()):  # NaN is never the same
        raise AssertionError(f"{title}: got {got.tolist()}, expected {expected.tolist()}")


def _finite(loss: Tensor, gradient: Tensor, title: str) -> None:
    if not bool(loss.isfinite()) or not bool(gradient.isfinite().all()):
        raise AssertionError(f"{title}: the loss is {loss.item()}, its gradient {gradient.tolist()}")


def check_shape_and_dtype(subject: Subject) -> None:
    """A finite scalar in the precision of the batch, a gradient for every trained token, and usable metrics."""
    for dtype in (torch.float32, torch.float64):
        batch = sample_batch(subject.part, dtype=dtype)
        loss, gradient, unreduced = _run(subject, batch)
        if loss.shape != () or loss.dtype is not dtype:
            raise AssertionError(f"the loss is {loss.dtype} of shape {tuple(loss.shape)}, expected a {dtype} scalar")
        if unreduced.values.shape != batch.mask.shape:
            raise AssertionError(f"values have shape {tuple(unreduced.values.shape)}, expected {(_ROWS, _TOKENS)}")
        _finite(loss, gradient, "a usual batch")
        if not bool(gradient.any()):
            raise AssertionError(
                "the gradient is 0 everywhere: the log-probabilities of the policy are not in the loss"
            )
        for name, metric in unreduced.metrics.items():
            if metric.values.shape not in ((_ROWS, _TOKENS), (_ROWS, 1)):
                raise AssertionError(
                    f"the metric {name!r} has shape {tuple(metric.values.shape)}, expected one a token"
                )


def check_float64(subject: Subject) -> None:
    """Float32 and float64 give the same gradient, up to rounding."""
    single, double = (_run(subject, sample_batch(subject.part, dtype=d))[1] for d in (torch.float32, torch.float64))
    _same(single.double(), double, "the gradient in float32 against float64", 1e-4)


def check_ignores_masked_tokens(subject: Subject) -> None:
    """Values outside the mask, NaN included, change nothing and get a gradient of exactly 0."""
    batch = sample_batch(subject.part)
    loss, gradient, _ = _run(subject, batch)
    names = ("logps", "old_logps", "ref_logps", "target_logps")
    for garbage in (float("nan"), float("inf"), -1e30):
        changed = {name: getattr(batch, name).masked_fill(~batch.mask, garbage) for name in names}
        other_loss, other_gradient, _ = _run(subject, replace(batch, **changed))
        if bool((other_gradient[~batch.mask] != 0).any()):
            raise AssertionError(f"tokens outside the mask that are {garbage} get a gradient")
        _same(other_gradient, gradient, f"{garbage} outside the mask")
        _same(other_loss, loss, f"{garbage} outside the mask")


def check_extreme_logps(subject: Subject) -> None:
    """A policy far from the sampling policy, on either side, gives finite numbers."""
    batch = sample_batch(subject.part)
    for shift in (_FAR, -_FAR):
        for name in ("old_logps", "ref_logps"):
            moved = replace(batch, **{name: getattr(batch, name) + shift})
            loss, gradient, _ = _run(subject, moved)
            _finite(loss, gradient, f"{name} {shift:+g} nats away")


def check_leaves_batch_alone(subject: Subject) -> None:
    """The batch is the same afterwards."""
    batch = sample_batch(subject.part)
    leaves_alone("batch", vars(batch), lambda: _run(subject, batch))


def check_split_invariance(subject: Subject) -> None:
    """Cut into micro-batches in any way, with padding or without, a batch gives the same loss and gradient."""
    batch = _with_pulls(subject.part.objective, sample_batch(subject.part))
    loss, gradient, _ = _run(subject, batch)
    for rows in (1, 2, 3):
        cuts = [slice(start, start + rows) for start in range(0, _ROWS, rows)]
        results = [_run(subject, _changed(batch, operator.itemgetter(cut))) for cut in cuts]
        _same(torch.cat([part for _, part, _ in results]), gradient, f"the gradient of micro-batches of {rows} rows")
        _same(torch.stack([part for part, _, _ in results]).sum(), loss, f"the loss of micro-batches of {rows} rows")

    def wider(value: Tensor) -> Tensor:
        grows = value.dim() == 2 and value.shape[1] == _TOKENS
        return torch.nn.functional.pad(value, (0, _PADDING)) if grows else value

    _same(_run(subject, _changed(batch, wider))[1][:, :_TOKENS], gradient, "the gradient of a batch with more padding")


def check_shares(subject: Subject) -> None:
    """A row's share multiplies its gradient, in every part of the loss; a share of 0 leaves nothing."""
    batch = sample_batch(subject.part)
    share = torch.tensor([2.0, 0.0, 1.0, 0.25, 4.0])
    _same(
        _run(subject, replace(batch, share=share))[1],
        share.unsqueeze(1) * _run(subject, batch)[1],
        "the gradient of rows with shares against shares of the gradient (a reduction must be linear in the values)",
    )


def check_advantages_per_token(subject: Subject) -> None:
    """The same advantage on each token of a completion equals that advantage of the completion."""
    batch = sample_batch(subject.part)
    spread = replace(batch, advantages=batch.advantages.expand(_ROWS, _TOKENS).clone())
    _same(_run(subject, spread)[1], _run(subject, batch)[1], "advantages of shape (B, T) against (B, 1)")


def check_zero_advantage_zero_gradient(subject: Subject) -> None:
    """Completions with advantage 0 have a gradient of exactly 0, as declared: the engine skips them."""
    batch = sample_batch(subject.part)
    for shift in (0.0, 1.0, -1.0):
        moved = replace(batch, advantages=torch.zeros_like(batch.advantages), old_logps=batch.old_logps + shift)
        gradient = _run(subject, moved)[1]
        if bool((gradient != 0).any()):
            raise AssertionError(f"advantages of 0 give the gradient {gradient.tolist()}, but 0 is declared")


def check_advantages_direct(subject: Subject) -> None:
    """On policy and near it, a step down the loss makes good completions likelier and bad ones less likely."""
    objective: Objective = subject.part.objective
    for drift in (0.0,) if objective.makes_targets else (0.0, _NEAR, -_NEAR):
        batch = _on_policy(subject, drift)
        gradient = _run(subject, batch)[1]
        if drift == 0 and not bool(gradient.any()):
            raise AssertionError("advantages of both signs give no gradient on policy: they are not in the loss")
        if objective.pulls_groups:
            _direct(_ends_of_groups(batch), -gradient.sum(dim=1, keepdim=True), batch, "the end of its group")
        elif objective.makes_targets:
            assert batch.target_sign is not None
            _direct(batch.target_sign, -gradient, batch, "target sign")
        else:
            _direct(batch.advantages, -gradient.sum(dim=1, keepdim=True), batch, "advantage")


def check_advantages_of_tokens_direct(subject: Subject) -> None:
    """An advantage of a token moves that token in its direction."""
    batch = _on_policy(subject)
    turns = torch.tensor([1.0, 1.0, -1.0, 0.0, -1.0, 1.0, -1.0], dtype=batch.advantages.dtype)
    batch = replace(batch, advantages=batch.advantages * turns)
    _direct(batch.advantages, -_run(subject, batch)[1], batch, "a token with advantage")


def _ends_of_groups(batch: TokenBatch) -> Tensor:
    """(B, 1) 1 for the best completion of each group if it is good, -1 for the worst if it is bad, else 0.

    A loss of groups may move the rest either way.
    """
    direction = torch.zeros_like(batch.advantages)
    for group in set(_GROUPS):
        here = [row for row in range(_ROWS) if _GROUPS[row] == group and bool(batch.mask[row].any())]
        order = sorted(here, key=lambda row: float(batch.advantages[row]))
        direction[order[0]] = batch.advantages[order[0]].clamp(max=0).sign()
        direction[order[-1]] = batch.advantages[order[-1]].clamp(min=0).sign()
    return direction


def _direct(direction: Tensor, pushed: Tensor, batch: TokenBatch, title: str) -> None:
    """Raise if a step down the loss moves log-probabilities against ``direction``."""
    wrong = (direction * pushed < 0) & batch.mask.any(dim=1, keepdim=True)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"completion {row} has {title} {direction[row, column]:g}, but a step down the loss moves its "
            f"log-probability by {pushed[row, column]:+.3g}: a loss is minimised, so advantages come in with a minus"
        )


def _per_token(subject: Subject) -> bool:
    objective: Objective = subject.part.objective
    return not (objective.ratio.piece.per_completion or objective.surrogate.piece.per_completion)


def _resolve(part: Part) -> Subject:
    """Return the subject of a name, a function, or a pair of one and its keywords (with ``beta``)."""
    source, options = part if isinstance(part, tuple) else (part, {})
    keywords = {name: value for name, value in options.items() if name != "beta"}
    beta = options.get("beta", 0.0)
    objective = build_objective(source, keywords, beta=beta)
    shown = {name: value for name, value in options.items() if name != "beta" or value}
    return Subject(Built(source, objective, beta), keywords, label_of(objective.name, shown))


KIT = Kit(
    _resolve,
    checks_of(
        globals(),
        lambda subject: _run(subject, sample_batch(subject.part))[1],
        lambda built, keywords: compose_objective(built.source, keywords, beta=built.beta)[1],
        advantages_per_token=_per_token,
        zero_advantage_zero_gradient=lambda subject: subject.part.objective.zero_advantage_means_zero_gradient,
        advantages_of_tokens_direct=lambda subject: _per_token(subject) and not subject.part.objective.makes_targets,
    ),
)

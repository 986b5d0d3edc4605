"""Execution of a plan: its passes, the bound on their tokens, and the dummy pass of a rank without work."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from grpo_plus.engine.branches import branches_of
from grpo_plus.engine.cost import PassPlan
from grpo_plus.engine.forward import Autocast, Head, Scores, score_packed
from grpo_plus.engine.models import ModelTraits
from grpo_plus.engine.pack import Packed, lay_out
from grpo_plus.engine.rows import Rows, columns, trim
from grpo_plus.engine.truncated_logps import AllowedMask, ExcludedMass, TruncatedModel, truncated_rows

LogProbs = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""The result of TRL's method: log-probabilities (B, C), entropies (B, C) or None, the router's loss or None."""


@dataclass(frozen=True)
class Job:
    """One request for log-probabilities.

    Inputs are (B, S), prompts padded left and completions right; ``rows`` measures them. TRL's method, ``stock``, takes
    ``batch_size`` rows a pass, None all. ``tokens_per_pass`` bounds the tokens of one forward and backward pass. With
    ``allowed`` log-probabilities are those of truncated sampling.
    """

    stock: Callable[..., LogProbs]
    model: Any
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    rows: Rows
    batch_size: int | None
    compute_entropy: bool
    traits: ModelTraits
    autocast: Autocast
    tokens_per_pass: int | None
    head: Head
    allowed: AllowedMask | None = None
    mass: ExcludedMass = field(default_factory=ExcludedMass)

    @property
    def completion_width(self) -> int:
        """The number of completion columns."""
        return self.rows.width - self.rows.prompt_width


@dataclass(frozen=True)
class PassScores:
    """The result of one pass: ``target`` are flat positions in (B, C); tokens are counted with padding."""

    target: torch.Tensor
    logps: torch.Tensor
    entropies: torch.Tensor | None
    tokens: int


def run_stock(job: Job) -> LogProbs:
    """Run TRL's own method on all rows; the result is in float32 as that of other plans."""
    rest = (job.input_ids, job.attention_mask, job.completion_width)
    options = {"batch_size": job.batch_size, "compute_entropy": job.compute_entropy}
    scores = job.stock(_rows(job, range(len(job.input_ids)), job.completion_width), *rest, **options)
    logps, entropies, loss = (None if one is None else one.float() for one in scores)
    assert logps is not None
    return logps, entropies, loss


def _rows(job: Job, rows: Sequence[int], length: int) -> Any:
    if job.allowed is None:
        return job.model
    return truncated_rows(
        job.model, job.allowed, rows, length, width=job.completion_width, head=job.head, mass=job.mass
    )


def _packed(job: Job, packed: Packed) -> Scores:
    model = job.model
    if job.allowed is not None:
        places = torch.full_like(packed.input_ids, -1)
        places.view(-1)[packed.scored] = packed.target
        model = TruncatedModel(model, job.allowed, places, job.head, job.mass, shifted=False)
    return score_packed(model, packed, job.autocast, attention=job.traits.attention, head=job.head)


def dummy(job: Job) -> torch.Tensor:
    """Run the smallest pass of TRL's method through the wrapped model: one scored token, times zero."""
    at = job.rows.prompt_width
    ids = job.input_ids[:1, at - 1 : at + 1]
    return 0.0 * job.stock(job.model, ids, torch.ones_like(ids), 1, compute_entropy=False)[0].sum()


def run(job: Job, plan: PassPlan, rows: Sequence[int]) -> Iterator[PassScores]:
    """Yield the scores of each pass of a plan over ``rows``."""
    if plan.layout == "packed":
        for trees in plan.passes:
            packed = lay_out(trees, job.rows, job.input_ids.device, joined=plan.joined)
            if plan.joined and job.traits.treatments.branching:
                packed = replace(packed, branches=branches_of(trees, job.input_ids.device))
            yield PassScores(packed.target, *_bounded(job, partial(_packed, job, packed)), packed.input_ids.numel())
        return
    trimmed = plan.layout == "trimmed"
    sides = {"left": trimmed and job.traits.treatments.trimming, "right": trimmed}
    step = len(rows) if job.batch_size is None else job.batch_size
    if job.tokens_per_pass is not None:
        step = min(step, max(1, job.tokens_per_pass // sum(columns(job.rows, rows, **sides))))
    for part in (rows[start : start + step] for start in range(0, len(rows), step)):
        ids, mask, length = trim(job.rows, part, job.input_ids, job.attention_mask, **sides)
        index = torch.tensor(part, device=ids.device)
        target = index[:, None] * job.completion_width + torch.arange(length, device=ids.device)
        yield PassScores(target.reshape(-1), *_bounded(job, partial(_stock, job, part, ids, mask, length)), ids.numel())


def _stock(job: Job, rows: Sequence[int], ids: torch.Tensor, mask: torch.Tensor, length: int) -> Scores:
    logps, entropies, _ = job.stock(_rows(job, rows, length), ids, mask, length, compute_entropy=job.compute_entropy)
    return logps.reshape(-1), None if entropies is None else entropies.reshape(-1)


def _bounded(job: Job, score: Callable[[], Scores]) -> Scores:
    """Run one pass; with a bound on its tokens its graph is dropped, and rebuilt in the backward pass.

    The loss needs the log-probabilities of all passes at once, and its backward pass would need all their graphs. With
    them dropped, the gradient of the log-probabilities is computed first; then each pass runs forward and backward in
    turn.
    """
    if job.tokens_per_pass is None or not torch.is_grad_enabled():
        return score()

    def again(_: torch.Tensor) -> Scores:
        logps, entropies = score()
        return logps, entropies if entropies is None or job.head.entropy_gradient else entropies.detach()

    # Only reentrant checkpointing runs its backward passes one inside the other; it needs an input with a gradient.
    anchor = torch.zeros((), device=job.input_ids.device, requires_grad=True)
    scores: Scores = checkpoint(again, anchor, use_reentrant=True)
    return scores

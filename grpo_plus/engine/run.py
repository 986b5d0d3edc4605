"""Running a plan: passes, the bound on their tokens, and what stands in for a rank without work."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from grpo_plus.engine.branches import branches_of
from grpo_plus.engine.cost import PassPlan
from grpo_plus.engine.forward import Autocast, Head, Scores, score_packed
from grpo_plus.engine.models import ModelFacts
from grpo_plus.engine.pack import Packed, lay_out
from grpo_plus.engine.rows import Rows, columns, trim
from grpo_plus.engine.truncated_logps import AllowedMask, ExcludedMass, truncated_packed, truncated_rows

LogProbs = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""The result of TRL's method: log-probabilities (B, C), entropies (B, C) or None, the router's loss or None."""


@dataclass(frozen=True)
class Job:
    """One request for log-probabilities.

    Inputs are (B, S), prompts padded left and completions right; ``rows`` measures them. TRL's method, ``stock``, takes
    ``batch_size`` rows a pass, None all. ``tokens_per_pass`` bounds the tokens of one forward and backward pass, if any
    does. Tokens are scored within their ``support``, where there is one.
    """

    stock: Callable[..., LogProbs]
    model: Any
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    rows: Rows
    batch_size: int | None
    compute_entropy: bool
    known: ModelFacts
    autocast: Autocast
    tokens_per_pass: int | None
    head: Head
    support: AllowedMask | None = None
    tally: ExcludedMass = field(default_factory=ExcludedMass)

    @property
    def completion_width(self) -> int:
        """Columns of the completion part."""
        return self.rows.width - self.rows.prompt_width


@dataclass(frozen=True)
class PassScores:
    """The result of one pass: ``target`` are flat positions in (B, C); tokens are counted with padding."""

    target: torch.Tensor
    logps: torch.Tensor
    entropies: torch.Tensor | None
    tokens: int


def whole(job: Job) -> LogProbs:
    """TRL's own method on everything, in float32 as any other plan's result."""
    rest = (job.input_ids, job.attention_mask, job.completion_width)
    options = {"batch_size": job.batch_size, "compute_entropy": job.compute_entropy}
    scores = job.stock(_rows(job, range(len(job.input_ids)), job.completion_width), *rest, **options)
    logps, entropies, loss = (None if one is None else one.float() for one in scores)
    assert logps is not None
    return logps, entropies, loss


def _rows(job: Job, rows: Sequence[int], kept: int) -> Any:
    """The model for a pass of TRL's method over some rows and their first ``kept`` completion tokens."""
    if job.support is None:
        return job.model
    return truncated_rows(
        job.model, job.support, rows, kept, width=job.completion_width, head=job.head, tally=job.tally
    )


def _packed(job: Job, packed: Packed) -> Scores:
    model = job.model
    if job.support is not None:
        model = truncated_packed(model, job.support, packed, head=job.head, tally=job.tally)
    return score_packed(model, packed, job.autocast, attention=job.known.attention, head=job.head)


def dummy(job: Job) -> torch.Tensor:
    """The smallest pass that TRL's method can make, through the wrapped model: one scored token, times zero."""
    at = job.rows.prompt_width
    ids = job.input_ids[:1, at - 1 : at + 1]
    return 0.0 * job.stock(job.model, ids, torch.ones_like(ids), 1, compute_entropy=False)[0].sum()


def run(job: Job, plan: PassPlan, rows: Sequence[int]) -> Iterator[PassScores]:
    """Make the passes of a plan, one by one, over ``rows``."""
    if plan.layout == "packed":
        for trees in plan.passes:
            packed = lay_out(trees, job.rows, job.input_ids.device, joined=plan.joined)
            if plan.joined and job.known.support.branching:
                packed = replace(packed, branches=branches_of(trees, job.input_ids.device))
            yield PassScores(packed.target, *_bounded(job, partial(_packed, job, packed)), packed.input_ids.numel())
        return
    trimmed = plan.layout == "trimmed"
    sides = {"left": trimmed and job.known.support.trimming, "right": trimmed}
    for part in _parts(job, rows, sum(columns(job.rows, rows, **sides))):
        ids, mask, kept = trim(job.rows, part, job.input_ids, job.attention_mask, **sides)
        index = torch.tensor(part, device=ids.device)
        target = index[:, None] * job.completion_width + torch.arange(kept, device=ids.device)
        yield PassScores(target.reshape(-1), *_bounded(job, partial(_stock, job, part, ids, mask, kept)), ids.numel())


def _stock(job: Job, rows: Sequence[int], ids: torch.Tensor, mask: torch.Tensor, kept: int) -> Scores:
    logps, entropies, _ = job.stock(_rows(job, rows, kept), ids, mask, kept, compute_entropy=job.compute_entropy)
    return logps.reshape(-1), None if entropies is None else entropies.reshape(-1)


def _parts(job: Job, rows: Sequence[int], width: int) -> Iterator[Sequence[int]]:
    """Rows that TRL's method runs together, each of at most so many columns."""
    step = len(rows) if job.batch_size is None else job.batch_size
    if job.tokens_per_pass is not None:
        step = min(step, max(1, job.tokens_per_pass // width))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _bounded(job: Job, score: Callable[[], Scores]) -> Scores:
    """One pass; with a bound on its tokens its graph is dropped, and built again when its gradient is known.

    The loss needs the log-probabilities of all passes at once, and its backward pass would keep all their graphs alive.
    With them dropped, the loss's gradient on the log-probabilities comes back first; then each pass runs forward again,
    and backward with its share of it, before the next one starts.
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

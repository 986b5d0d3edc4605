"""The training loop of a reward model: one process, AdamW, a rate that falls to zero, early stop on held-out data.

A loop of our own rather than TRL's RewardTrainer, which reads another text than TRL's GRPO later hands to the model (it
ends a text with the end-of-sequence token and begins it with special ones), counts ties as wrong, drops rows that are
too long without a word and has no step labels. Dropout is off: a pair is compared under one model, not under two masks.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from grpo_plus.reward_model.tasks import Judged, Task


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train; ``batch`` rows a pass, ``accumulation`` passes a step."""

    learning_rate: float
    batch: int
    accumulation: int = 1
    epochs: float = 1.0
    max_steps: int | None = None
    eval_steps: int | None = None
    patience: int | None = None
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 0

    def steps(self, rows: int) -> int:
        """Optimizer steps on so many rows."""
        a_round = math.ceil(rows / (self.batch * self.accumulation))
        return self.max_steps or max(1, math.ceil(a_round * self.epochs))


@dataclass(frozen=True)
class Fitted:
    """What a training came to: its loss at every step, and how the kept model does on held-out data."""

    losses: tuple[float, ...]
    held: Judged | None
    kept: int
    stopped: bool


class FitError(ValueError):
    """A training that cannot go on."""


Report = Callable[[int, int, float, Judged | None], None]
"""Called after a step with its number, their number, the loss, and what held-out data said, if it was asked."""


def fit(model: Any, train: Task, held: Task | None, plan: Plan, report: Report | None = None) -> Fitted:
    """Train the parameters of a model that take gradients; it stays in evaluation mode.

    Held-out data is asked every ``eval_steps`` (unset: at the end). With ``patience``, training ends when that many
    answers in a row were no better than the best, and the model of the best one is kept.
    """
    model.eval()
    parameters = [one for one in model.parameters() if one.requires_grad]
    if not parameters:
        raise FitError("no parameter of the model takes gradients: there is nothing to train.")
    optimizer = torch.optim.AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay)
    steps = plan.steps(len(train))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    losses, best = list[float](), _Best(parameters if plan.patience else None)
    batches = _batches(len(train), plan)
    judged, stopped = None, False
    for step in range(1, steps + 1):
        losses.append(_step(model, train, next(batches), plan, optimizer, parameters, f"step {step} of {steps}"))
        schedule.step()
        judged = None
        if held is not None and (step == steps or (plan.eval_steps and step % plan.eval_steps == 0)):
            with _computing(model):
                judged = held.judge(model, plan.batch)
            if not math.isfinite(judged.loss):
                raise FitError(f"the held-out loss is {judged.loss} after step {step} of {steps}: lower learning_rate.")
            best.see(step, judged)
        if report is not None:
            report(step, steps, losses[-1], judged)
        if plan.patience and best.since >= plan.patience:
            stopped = True
            break
    if plan.patience:
        best.restore()
        return Fitted(tuple(losses), best.judged, best.step, stopped)
    return Fitted(tuple(losses), judged, len(losses), stopped)


def _step(  # noqa: PLR0917 - the state of the loop
    model: Any, train: Task, rows: Sequence[int], plan: Plan, optimizer: Any, parameters: Sequence[Any], where: str
) -> float:
    """One optimizer step on some rows, as many passes as they take; gives the mean loss."""
    total, size = 0.0, max(1, train.size(rows))
    for start in range(0, len(rows), plan.batch):
        with _computing(model):
            loss = train.loss(model, rows[start : start + plan.batch]) / size
        total += loss.item()
        if not math.isfinite(total):
            raise FitError(
                f"the loss is {total} at {where}: the model gives scores that are no numbers. Lower learning_rate, or "
                "look whether the model's weights are finite."
            )
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    norm = torch.nn.utils.clip_grad_norm_(parameters, plan.max_grad_norm)
    if not math.isfinite(float(norm)):
        raise FitError(f"the gradient is {float(norm)} at {where}, with a loss of {total:.4g}: lower learning_rate.")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def _computing(model: Any) -> AbstractContextManager[Any]:
    """Weights of 16 bits beside trained ones of 32 compute in 16 on a card."""
    if model.device.type == "cpu" or model.dtype not in (torch.bfloat16, torch.float16):
        return nullcontext()
    return torch.autocast(model.device.type, model.dtype)


def _batches(rows: int, plan: Plan) -> Iterator[list[int]]:
    """The rows of each step, in another order every epoch; the last of an epoch may have fewer."""
    draws = torch.Generator().manual_seed(plan.seed)
    size = plan.batch * plan.accumulation
    while True:
        order = torch.randperm(rows, generator=draws).tolist()
        yield from (order[start : start + size] for start in range(0, rows, size))


class _Best:
    """The best answer of held-out data so far, and the parameters that gave it, if they are to be kept."""

    def __init__(self, parameters: Sequence[Any] | None) -> None:
        self._parameters = parameters
        self._kept: list[Any] = []
        self.judged: Judged | None = None
        self.step = self.since = 0

    def see(self, step: int, judged: Judged) -> None:
        """Better is a higher accuracy, then a lower loss."""
        now = self.judged
        if now is not None and (judged.accuracy, -judged.loss) <= (now.accuracy, -now.loss):
            self.since += 1
            return
        self.judged, self.step, self.since = judged, step, 0
        if self._parameters is not None:
            self._kept = [one.detach().to("cpu", copy=True) for one in self._parameters]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the kept parameters back."""
        for parameter, kept in zip(self._parameters or (), self._kept, strict=True):
            parameter.copy_(kept)


def split_by_group(groups: Sequence[str], share: float, seed: int) -> tuple[list[int], list[int]]:
    """The rows to train on and those held out: a share of the prompts with all their rows, at least one prompt.

    >>> split_by_group(["a", "a", "b", "c"], 0.34, seed=0)
    ([0, 1, 3], [2])

    Raises:
        ValueError: there are fewer than two prompts.
    """
    names = list(dict.fromkeys(groups))
    if len(names) < 2:
        raise ValueError(f"all {len(groups)} rows have one prompt: none can be held out without leaving nothing.")
    count = min(len(names) - 1, max(1, round(share * len(names))))
    out = set(random.Random(seed).sample(names, count))  # noqa: S311 - a split, not a secret
    rows = range(len(groups))
    return [row for row in rows if groups[row] not in out], [row for row in rows if groups[row] in out]

"""Retries of an update in smaller parts after an out-of-memory error.

It costs nothing while memory suffices: no gradient is copied. A failed backward pass leaves incomplete gradients, so
all gradients of the accumulation window are dropped, and its earlier micro-batches run again before the failed one. The
weights are unchanged since the start of the window, and each pass starts from its original random state: the gradient
is the same up to rounding. With dropout it is the same in expectation only: smaller parts draw other masks.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from grpo_plus.memory.errors import StepTooLargeError, attempt, release
from grpo_plus.memory.snapshot import Undo, attributes, gradients, lengths, random_state, together
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

Scores = TypeVar("Scores")

Parts = Iterable[tuple[Any, Iterable[str] | None]]
"""Objects and the names of their attributes; None for all."""


@dataclass(frozen=True)
class Seams:
    """Functions of a trainer that the update calls at each micro-batch.

    Attributes:
        model: the trained model.
        lists: returns the metric lists of the current mode.
        state: returns the other state that a micro-batch changes.
        flags: returns the inputs of a micro-batch that must be restored before a retry.
        window: returns a number that changes with each optimizer step.
        part: returns the bound on the tokens of a pass.
        shrink: sets that bound.
        refusal: returns the reason why passes cannot be split; None if they can.
        advice: returns the settings to change.
        count: called with the number of retries of a micro-batch.
    """

    model: nn.Module
    lists: Callable[[], MutableMapping[str, list[Any]]]
    state: Callable[[], Parts]
    flags: Callable[[], Parts]
    window: Callable[[], int]
    part: Callable[[], int | None]
    shrink: Callable[[int], None]
    refusal: Callable[[], str | None]
    advice: Callable[[], str]
    count: Callable[[int], None]


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of an accumulation window; ``rewind`` restores its initial random state and flags."""

    inputs: Mapping[str, Any]
    rewind: Undo


@dataclass
class AccumulationWindow:
    """The micro-batches accumulated since the optimizer step of this number.

    ``gradients`` restores the gradients at its start; ``done`` are the finished micro-batches.
    """

    number: int
    gradients: Undo
    done: list[MicroBatch] = field(default_factory=list)


class Update:
    """Runs the forward and backward passes of a trainer, with retries."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._window: AccumulationWindow | None = None
        self._running = False
        self._present: MicroBatch | None = None
        self._progress: Undo | None = None
        self._replayed: MicroBatch | None = None

    def inputs(self, prepare: Callable[[], Any]) -> Any:
        """Return the micro-batch to run: prepared, or in a retry the previous one.

        Preparing it may draw completions, which must not happen twice.
        """
        if self._replayed is not None:
            return dict(self._replayed.inputs)
        prepared = prepare()
        seams = self._seams
        if self._running and seams.model.training:
            number = seams.window()
            accumulating = any(parameter.grad is not None for parameter in seams.model.parameters())
            if self._window is None or self._window.number != number or not accumulating:
                self._window = AccumulationWindow(number, gradients(seams.model))
            devices = {parameter.device for parameter in seams.model.parameters()}
            flags = [attributes(target, names) for target, names in seams.flags()]
            state = [attributes(target, names) for target, names in seams.state()]
            self._present = MicroBatch(dict(prepared), together(random_state(devices), *flags))
            self._progress = together(lengths(seams.lists()), *state)
        return prepared

    def run(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run one micro-batch, and retry in smaller and smaller parts until it fits.

        ``step`` prepares its inputs through `inputs`, runs forward and backward.

        Raises:
            StepTooLargeError: the parts cannot get smaller.
        """
        failures = 0
        self._running = True
        try:
            loss, failure = attempt(step)
            while failure is not None:
                failures += 1
                self._make_smaller(failure)
                loss, failure = attempt(lambda: self._again(step))
            if self._window is not None and self._present is not None:
                self._window.done.append(self._present)
        finally:
            self._running, self._present, self._progress, self._replayed = False, None, None, None
        if failures:
            self._seams.count(failures)
        assert loss is not None
        return loss

    def _again(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        assert self._window is not None
        assert self._present is not None
        assert self._progress is not None
        for earlier in self._window.done:
            self._replayed = earlier
            earlier.rewind()
            step()
            self._progress()  # its first run was counted and logged
        self._replayed = self._present
        self._present.rewind()
        return step()

    def _make_smaller(self, failure: str) -> None:
        seams, window = self._seams, self._window
        if self._present is None or self._progress is None or window is None:
            raise StepTooLargeError(f"out of memory while the update was prepared: {failure}. {seams.advice()}")
        failed = self._replayed or self._present
        window.gradients()
        self._progress()
        reason = seams.refusal()
        if reason is not None:
            raise StepTooLargeError(
                f"out of memory in the update: {failure}. It cannot be run in smaller parts: {reason}. {seams.advice()}"
            )
        longest, total = _tokens(failed.inputs)
        now = seams.part()
        if now is not None and now <= longest:
            raise StepTooLargeError(
                f"out of memory in the update, with one completion of at most {longest} tokens a pass: {failure}. "
                f"{seams.advice()}"
            )
        smaller = max(longest, min(total, now or total) // 2)
        seams.shrink(smaller)
        release()
        logger.warning(
            "Out of memory in the update (%s). It runs again with at most %d tokens a pass, and so do the next ones: "
            "the same gradient up to rounding (dropout, where there is any, draws other masks), from more passes. To "
            "start that way, set engine: {tokens_per_pass: %d}.",
            failure,
            smaller,
            smaller,
        )


class Scoring:
    """Runs the passes without gradient of a trainer, with fewer rows at a time after memory has run out.

    Rows are independent, so the results are the same up to rounding. With dropout, active if a model scores in training
    mode, smaller parts draw other masks.

    ``snapshot`` saves the random state before a pass, ``advice`` returns the settings to change, and ``count`` is
    called with the number of retries of a pass. ``most_rows`` is the limit of rows a pass after memory has run out.
    """

    def __init__(
        self, *, snapshot: Callable[[], Undo], advice: Callable[[], str], count: Callable[[int], None]
    ) -> None:
        self._snapshot = snapshot
        self._advice = advice
        self._count = count
        self.most_rows: int | None = None

    def run(
        self,
        score: Callable[[int | None], Scores],
        *,
        rows: int,
        batch_size: int | None,
        refusal: Callable[[], str | None],
    ) -> Scores:
        """Score all rows, ``batch_size`` a pass; None for all.

        ``score`` takes the rows of a pass; ``refusal`` returns the reason why passes cannot be split, or None.

        Raises:
            StepTooLargeError: the parts cannot get smaller.
        """
        rewind = self._snapshot()
        failures = 0
        size = batch_size
        if self.most_rows is not None:
            size = min(batch_size or rows, self.most_rows)
        scores, failure = attempt(partial(score, size))
        while failure is not None:
            failures += 1
            size = self._smaller(min(size or rows, rows), failure, refusal())
            rewind()
            release()
            scores, failure = attempt(partial(score, size))
        if failures:
            self._count(failures)
        assert scores is not None
        return scores

    def _smaller(self, size: int, failure: str, reason: str | None) -> int:
        if reason is not None:
            raise StepTooLargeError(
                f"out of memory in a pass without gradient: {failure}. It cannot be run in smaller parts: {reason}. "
                f"{self._advice()}"
            )
        if size <= 1:
            raise StepTooLargeError(
                f"out of memory in a pass without gradient, with one completion at a time: {failure}. {self._advice()}"
            )
        self.most_rows = size // 2
        logger.warning(
            "Out of memory in a pass without gradient (%s). It runs again with at most %d completions at a time, and "
            "so do the next ones: the same log-probabilities up to rounding (dropout, where there is any, draws other "
            "masks).",
            failure,
            self.most_rows,
        )
        return self.most_rows


def _tokens(inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens of the longest row of a micro-batch, and of all its rows with padding."""
    per_row = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
    return int(per_row.max()), inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()

"""An update that runs out of memory goes through again in smaller parts.

As long as memory suffices this costs nothing: no gradient is copied. A backward pass that breaks off leaves gradients
of which nobody can say which are whole, so all of the accumulation window are dropped and its earlier micro-batches run
again before the one that failed. The weights have not moved since the window began, and each pass starts from the
random state that it had: the gradient is the same up to rounding. With dropout it is so in expectation only: smaller
parts draw other masks.
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
"""Objects, and which of their attributes; None for all."""


@dataclass(frozen=True)
class Seams:
    """What the update asks of a trainer, asked for anew at each micro-batch.

    Attributes:
        model: whose gradients are at stake.
        lists: the metric lists of the present mode.
        state: what a micro-batch changes beside gradients and metrics.
        flags: what was set for a micro-batch and must be set so again for it to run a second time.
        window: a number that changes with each optimizer step.
        part: the bound on the tokens of a pass.
        shrink: sets that bound.
        refusal: why passes cannot be split, in words; None if they can.
        advice: what to change in the config.
        count: is told how often a micro-batch ran again.
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
    """A micro-batch of an accumulation window; ``rewind`` sets the random state and the flags that it started with."""

    inputs: Mapping[str, Any]
    rewind: Undo


@dataclass
class AccumulationWindow:
    """What was accumulated since the last optimizer step, whose number it has.

    ``gradients`` puts back those from before; ``done`` are the micro-batches that went through.
    """

    number: int
    gradients: Undo
    done: list[MicroBatch] = field(default_factory=list)


class Update:
    """Watches the forward and backward passes of a trainer."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._window: AccumulationWindow | None = None
        self._running = False
        self._present: MicroBatch | None = None
        self._progress: Undo | None = None
        self._given: MicroBatch | None = None

    def inputs(self, prepare: Callable[[], Any]) -> Any:
        """The micro-batch to run: prepared, or, when one runs again, the same as before.

        Preparing it may draw completions, which must not happen twice.
        """
        if self._given is not None:
            return dict(self._given.inputs)
        prepared = prepare()
        seams = self._seams
        if self._running and seams.model.training:
            number = seams.window()
            begun = any(parameter.grad is not None for parameter in seams.model.parameters())
            if self._window is None or self._window.number != number or not begun:
                self._window = AccumulationWindow(number, gradients(seams.model))
            devices = {parameter.device for parameter in seams.model.parameters()}
            flags = [attributes(thing, names) for thing, names in seams.flags()]
            state = [attributes(thing, names) for thing, names in seams.state()]
            self._present = MicroBatch(dict(prepared), together(random_state(devices), *flags))
            self._progress = together(lengths(seams.lists()), *state)
        return prepared

    def run(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run one micro-batch, again in smaller parts for as long as it does not fit.

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
            self._running, self._present, self._progress, self._given = False, None, None, None
        if failures:
            self._seams.count(failures)
        assert loss is not None
        return loss

    def _again(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        assert self._window is not None
        assert self._present is not None
        assert self._progress is not None
        for earlier in self._window.done:
            self._given = earlier
            earlier.rewind()
            step()
            self._progress()  # it was counted and logged when it ran first
        self._given = self._present
        self._present.rewind()
        return step()

    def _make_smaller(self, failure: str) -> None:
        seams, window = self._seams, self._window
        if self._present is None or self._progress is None or window is None:
            raise StepTooLargeError(f"out of memory while the update was prepared: {failure}. {seams.advice()}")
        failed = self._given or self._present
        window.gradients()
        self._progress()
        reason = seams.refusal()
        if reason is not None:
            raise StepTooLargeError(
                f"out of memory in the update: {failure}. It cannot be run in smaller parts: {reason}. {seams.advice()}"
            )
        longest, whole = _tokens(failed.inputs)
        now = seams.part()
        if now is not None and now <= longest:
            raise StepTooLargeError(
                f"out of memory in the update, with one completion of at most {longest} tokens a pass: {failure}. "
                f"{seams.advice()}"
            )
        smaller = max(longest, min(whole, now or whole) // 2)
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
    """Makes the passes without gradient of a trainer, in fewer rows at a time once memory has run out.

    Rows do not see each other, so the numbers are the same up to rounding; with dropout, which is active where a model
    in training mode scores, smaller parts draw other masks.

    ``noted`` notes the random state that a pass starts from, ``advice`` says what to change in the config, and
    ``count`` is told how often a pass ran again. ``most_rows`` are the rows of a pass at most, once memory has run out.
    """

    def __init__(self, *, noted: Callable[[], Undo], advice: Callable[[], str], count: Callable[[int], None]) -> None:
        self._noted = noted
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

        ``score`` is given the rows of a pass, ``refusal`` says why there can be no smaller parts; None if there can.

        Raises:
            StepTooLargeError: the parts cannot get smaller.
        """
        rewind = self._noted()
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
    """Tokens of the longest row of a micro-batch, and of all its rows with padding."""
    per_row = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
    return int(per_row.max()), inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()

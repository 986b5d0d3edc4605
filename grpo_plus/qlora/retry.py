"""A step that runs out of memory goes through again in smaller parts, with the same gradient."""

import gc
import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

from grpo_plus.qlora.snapshot import Snapshot

logger = logging.getLogger(__name__)


class StepTooLargeError(RuntimeError):
    """A step does not fit in memory, however small its parts; the message holds the planner's advice."""


class Retry:
    """Watches a trainer's forward and backward passes.

    Args:
        model: whose gradients are at stake.
        active: whether to watch at all; noting gradients and random state costs a little.
        lists: gives the metric lists of the present mode.
        objects: gives the objects that a pass changes, whole.
        names: gives objects of which a pass changes the named attributes.
        part: the bound on the tokens of a pass, as it is now.
        shrink: sets that bound.
        refusal: why passes cannot be split, in words; None if they can.
        advice: what to change in the config.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        active: bool,
        lists: Callable[[], MutableMapping[str, list[Any]]],
        objects: Callable[[], Iterable[Any]],
        names: Callable[[], Iterable[tuple[Any, Iterable[str]]]],
        part: Callable[[], int | None],
        shrink: Callable[[int], None],
        refusal: Callable[[], str | None],
        advice: Callable[[], str],
    ) -> None:
        self.count = 0
        self._active = active
        self._model = model
        self._lists = lists
        self._objects = objects
        self._names = names
        self._part = part
        self._shrink = shrink
        self._refusal = refusal
        self._advice = advice
        self._inputs: Mapping[str, Any] | None = None
        self._snapshot: Snapshot | None = None
        self._again = False

    def inputs(self, prepare: Callable[[], Any]) -> Any:
        """The micro-batch of the step: prepared, or, when the step runs again, the same one.

        Args:
            prepare: makes it; may draw completions, which must not happen twice.
        """
        if self._again:
            assert self._inputs is not None
            return dict(self._inputs)
        prepared = prepare()
        if self._active and self._model.training:
            self._inputs = dict(prepared)
            self._snapshot = Snapshot.take(self._model, self._lists(), self._objects(), self._names())
        return prepared

    def run(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run one step, again in smaller parts for as long as it does not fit.

        Args:
            step: prepares its inputs through `inputs`, runs forward and backward.

        Raises:
            StepTooLargeError: the parts cannot get smaller, or the failure was not in a pass.
        """
        if not self._active:
            return step()
        self._snapshot, self._inputs = None, None
        failures = 0
        try:
            while True:
                failure = None
                try:
                    loss = step()
                except torch.OutOfMemoryError as error:
                    failure = str(error).split("\n", 1)[0]
                # Outside the handler: an exception being handled holds every tensor of the failed pass.
                if failure is None:
                    break
                failures += 1
                self._prepare_again(failure)
        finally:
            self._again = False
            self._snapshot, self._inputs = None, None
        if failures:
            self._lists()["memory/retries"].append(float(failures))
        return loss

    def _prepare_again(self, failure: str) -> None:
        if self._snapshot is None or self._inputs is None:
            raise StepTooLargeError(f"out of memory while drawing or scoring completions: {failure} {self._advice()}")
        reason = self._refusal()
        if reason is not None:
            raise StepTooLargeError(
                f"out of memory in the update: {failure} The step cannot be run in smaller parts: {reason}. "
                f"{self._advice()}"
            )
        self._snapshot.restore()
        longest, whole = _tokens(self._inputs)
        now = self._part()
        if now is not None and now <= longest:
            raise StepTooLargeError(
                f"out of memory in the update, with one completion of at most {longest} tokens a pass: {failure} "
                f"{self._advice()}"
            )
        smaller = max(longest, min(whole, now or whole) // 2)
        self._shrink(smaller)
        self._again = True
        self.count += 1
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        logger.warning(
            "Out of memory in the update (%s). The step runs again with at most %d tokens a pass, and so do the next "
            "ones: same gradient, more passes. To start that way, set engine_tokens_per_pass: %d.",
            failure,
            smaller,
            smaller,
        )


def _tokens(inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of the longest row of a micro-batch, and of all its rows with padding."""
    lengths = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
    return int(lengths.max()), inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()

"""Out of memory in a trainer: run a pass again in smaller parts, or end with advice.

It costs nothing while memory suffices: no gradient is copied. A failed backward pass leaves incomplete gradients, so
all gradients of the accumulation window are dropped, and its earlier micro-batches run again before the failed one. The
weights are unchanged since the start of the window, and each pass starts from its original random state: the gradient
is the same up to rounding. With dropout it is the same in expectation only: smaller parts draw other masks.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_plus.memory.advice import LOWER, PLAN, STATES, optimizer_of
from grpo_plus.memory.errors import StepTooLargeError, attempt, first_line, is_out_of_memory, release
from grpo_plus.memory.snapshot import Undo, attributes, gradients, lengths, random_state, together
from grpo_plus.training.hooks import Prepare, TrainerStage
from grpo_plus.training.update.engine import UpdateEngine
from grpo_plus.trl.logs import metric_lists
from grpo_plus.trl.ranks import adapter_configs
from grpo_plus.trl.rollout import STEP_STATE
from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus.memory")

RETRIES = "memory/retries"
"""Metric: passes since the last log that ran again in smaller parts."""
_AT_ONCE = "A reward model reads all completions of a generation batch at once: lower steps_per_generation."


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


class Retry(TrainerStage):
    """Runs the passes of a trainer again in smaller parts if memory runs out, and counts the retries.

    The engine bounds the passes of an update; ``most_rows`` bounds those without gradient, whose rows are independent.
    ``changed`` are the objects whose attributes a micro-batch changes.
    """

    name = "retry"
    rank_local = True

    def __init__(self, engine: UpdateEngine, changed: Sequence[Any]) -> None:
        self.count = 0
        self.most_rows: int | None = None
        self._engine = engine
        self._changed = changed
        self._optimizer_runs = False
        self._window: AccumulationWindow | None = None
        self._running = False
        self._present: MicroBatch | None = None
        self._progress: Undo | None = None
        self._replayed: MicroBatch | None = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self.most_rows is None else {"most_rows": self.most_rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.most_rows = int(state["most_rows"])

    # -- the update ----------------------------------------------------------------------------------------------------

    def inputs(self, prepare: Prepare) -> Any:
        """Return the micro-batch to run: prepared, or in a retry the previous one.

        Preparing it may draw completions, which must not happen twice.
        """
        if self._replayed is not None:
            return dict(self._replayed.inputs)
        prepared = prepare()
        host, model = self.host, self.host.model
        if self._running and model.training:
            number = int(host.state.global_step)
            accumulating = any(parameter.grad is not None for parameter in model.parameters())
            if self._window is None or self._window.number != number or not accumulating:
                self._window = AccumulationWindow(number, gradients(model))
            flags = attributes(host.accelerator.gradient_state, ("sync_gradients",))
            state = [attributes(part) for part in self._changed]
            self._present = MicroBatch(dict(prepared), together(self._random_state(), flags))
            self._progress = together(lengths(metric_lists(host)), *state, attributes(host, STEP_STATE))
        return prepared

    def step(self, run: Callable[[], Tensor]) -> Tensor:
        """Run one micro-batch, forward and backward, and again in smaller and smaller parts until it fits.

        Raises:
            StepTooLargeError: the parts cannot get smaller.
        """
        failures = 0
        self._running = True
        try:
            loss, failure = attempt(run)
            while failure is not None:
                failures += 1
                self._make_smaller(failure)
                loss, failure = attempt(lambda: self._again(run))
            if self._window is not None and self._present is not None:
                self._window.done.append(self._present)
        finally:
            self._running, self._present, self._progress, self._replayed = False, None, None, None
        if failures:
            self.note(metric_lists(self.host), failures)
        assert loss is not None
        return loss

    def _again(self, run: Callable[[], Tensor]) -> Tensor:
        assert self._window is not None
        assert self._present is not None
        assert self._progress is not None
        for earlier in self._window.done:
            self._replayed = earlier
            earlier.rewind()
            run()
            self._progress()  # its first run was counted and logged
        self._replayed = self._present
        self._present.rewind()
        return run()

    def _make_smaller(self, failure: str) -> None:
        window, engine = self._window, self._engine.engine
        if self._present is None or self._progress is None or window is None:
            raise self._too_large(f"while the update was prepared: {failure}")
        failed = self._replayed or self._present
        window.gradients()
        self._progress()
        if reason := self._update_refusal():
            raise self._too_large(f"in the update: {failure}. It cannot be run in smaller parts: {reason}")
        longest, total = _tokens(failed.inputs)
        now = engine.tokens_per_pass
        if now is not None and now <= longest:
            raise self._too_large(f"in the update, with one completion of at most {longest} tokens a pass: {failure}")
        smaller = max(longest, min(total, now or total) // 2)
        self._shrink(smaller)
        release()
        logger.warning(
            "Out of memory in the update (%s). It runs again with at most %d tokens a pass, and so do the next ones: "
            "the same gradient up to rounding (dropout, where there is any, draws other masks), from more passes. To "
            "start that way, set engine: {tokens_per_pass: %d}.",
            failure,
            smaller,
            smaller,
        )

    def _shrink(self, tokens: int) -> None:
        self._engine.engine.tokens_per_pass = tokens

    def _update_refusal(self) -> str | None:
        optim = optimizer_of(self.host.args)
        parameters = self.host.model.parameters()
        hooked = any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters)
        if hooked or "lomo" in optim:
            return f"the optimizer ({optim}) changes weights during the backward pass"
        return self._engine.engine.split_refusal(self.host.model)

    # -- passes without gradient ---------------------------------------------------------------------------------------

    def logps(  # noqa: PLR0917 - TRL calls it so
        self,
        score: Callable[..., Any],
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **further: Any,
    ) -> Any:
        """Call TRL's ``_get_per_token_logps_and_entropies``; without gradient, in as many parts as needed.

        Raises:
            StepTooLargeError: the parts cannot get smaller.
        """
        keywords = {"compute_entropy": compute_entropy, **further}
        scores = partial(score, model, input_ids, attention_mask, logits_to_keep, **keywords)
        if torch.is_grad_enabled():
            return scores(batch_size=batch_size)
        rewind, rows, failures = self._random_state(), input_ids.shape[0], 0
        size = batch_size if self.most_rows is None else min(batch_size or rows, self.most_rows)
        result, failure = attempt(partial(scores, batch_size=size))
        while failure is not None:
            failures += 1
            size = self._fewer_rows(min(size or rows, rows), failure, router=bool(further.get("compute_aux_loss")))
            rewind()
            release()
            result, failure = attempt(partial(scores, batch_size=size))
        if failures:
            self.note(metric_lists(self.host), failures)
        return result

    def _fewer_rows(self, size: int, failure: str, *, router: bool) -> int:
        reason = "the router's load-balancing loss is computed over all tokens of a pass" if router else None
        if reason := reason or self._engine.engine.rows_refusal():
            raise self._too_large(f"in a pass without gradient: {failure}. It cannot be run in smaller parts: {reason}")
        if size <= 1:
            raise self._too_large(f"in a pass without gradient, with one completion at a time: {failure}")
        self.most_rows = size // 2
        logger.warning(
            "Out of memory in a pass without gradient (%s). It runs again with at most %d completions at a time, and "
            "so do the next ones: the same log-probabilities up to rounding (dropout, where there is any, draws other "
            "masks).",
            failure,
            self.most_rows,
        )
        return self.most_rows

    # -- what cannot run again -----------------------------------------------------------------------------------------

    def scoring(self) -> AbstractContextManager[None]:
        """Around scoring: a reward model that does not fit ends the run."""
        return self.ending("completions were scored", lambda: _AT_ONCE)

    @contextmanager
    def ending(self, where: str, reason: Callable[[], str]) -> Iterator[None]:
        """Around work that cannot run in smaller parts: explain an out-of-memory error.

        ``where`` completes "out of memory while …"; ``reason`` is a sentence on why there are no smaller parts.
        """
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise self._too_large(f"while {where}: {first_line(error)}", reason()) from error

    @contextmanager
    def training(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._optimizer_runs:
                what = f"in the optimizer's step: {first_line(error)}. Its state is allocated there. {STATES}."
                raise StepTooLargeError(f"out of memory {what}") from error
            raise self._too_large(f"between the passes: {first_line(error)}") from error

    def note(self, lists: MutableMapping[str, list[float]], failures: int) -> None:
        """Count passes that ran again in TRL's metric lists, whose means are logged."""
        self.count += failures
        lists[RETRIES] = [sum(lists.get(RETRIES, [])) + failures]  # one value, so that the mean is the sum

    def _random_state(self) -> Undo:
        return random_state({parameter.device for parameter in self.host.model.parameters()})

    def _too_large(self, what: str, reason: str = "") -> StepTooLargeError:
        advice = f"{LOWER}; {PLAN}." if adapter_configs(self.host) else f"{LOWER}. {STATES}."
        return StepTooLargeError(f"out of memory {what}. {reason}{' ' * bool(reason)}{advice}")

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._optimizer_runs = False

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer_runs = True

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer_runs = False


def _tokens(inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Return the tokens of the longest row of a micro-batch, and of all its rows with padding."""
    per_row = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
    return int(per_row.max()), inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()

"""What a trainer does where memory runs out: goes on in smaller parts, or ends with what to change."""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from grpo_plus import _trl
from grpo_plus.memory.errors import StepTooLargeError, first_line, is_out_of_memory
from grpo_plus.memory.scoring import Scoring
from grpo_plus.memory.undo import random_state
from grpo_plus.memory.update import Seams, Update

RETRIES = "memory/retries"
"""The metric: how many passes ran again in smaller parts since the last log."""


class Retry:
    """Stands between a trainer and its passes.

    Args:
        trainer: fully built, with its engine.
        advice: settings that would fit, in a sentence.
        optimizer_advice: the same for the optimizer's step, whose memory does not depend on the batch.

    Attributes:
        count: how often anything ran again since the trainer was made.
    """

    def __init__(self, trainer: Any, *, advice: Callable[[], str], optimizer_advice: Callable[[], str]) -> None:
        self.count = 0
        self._trainer = trainer
        self._advice = advice
        self._optimizer_advice = optimizer_advice
        self._update = Update(self._seams())
        self._scoring = Scoring(
            noted=lambda: random_state({parameter.device for parameter in trainer.model.parameters()}),
            advice=advice,
            count=self._count,
        )
        self._optimizer = _OptimizerStep()
        trainer.add_callback(self._optimizer)

    def inputs(self, prepare: Callable[[], Any]) -> Any:
        """The micro-batch to run: prepared, or, when one runs again, the same as before."""
        return self._update.inputs(prepare)

    def run(self, step: Callable[[], Tensor]) -> Tensor:
        """One micro-batch, forward and backward, in as many parts as it takes."""
        return self._update.run(step)

    def score(  # noqa: PLR0917 - TRL calls it so
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
        """TRL's ``_get_per_token_logps_and_entropies``; without gradient, in as many parts as it takes.

        Args:
            score: what to call.
            model: this and the rest as TRL passes them.
            input_ids: (B, S).
            attention_mask: (B, S).
            logits_to_keep: completion columns.
            batch_size: rows of one pass; None for all.
            compute_entropy: whether entropies are asked for.
            **further: anything else.
        """

        def scores(rows: int | None) -> Any:
            return score(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size=rows,
                compute_entropy=compute_entropy,
                **further,
            )

        if torch.is_grad_enabled():
            return scores(batch_size)
        return self._scoring.run(
            scores,
            rows=input_ids.shape[0],
            batch_size=batch_size,
            refusal=lambda: self._scoring_refusal(router=bool(further.get("compute_aux_loss"))),
        )

    @contextmanager
    def ending(self, where: str, reason: Callable[[], str]) -> Iterator[None]:
        """Around what cannot run in smaller parts: an out-of-memory error there says where, why and what to change.

        Args:
            where: ends the sentence "out of memory while …".
            reason: why there are no smaller parts, and how there would be; a sentence.
        """
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise StepTooLargeError(
                f"out of memory while {where}: {first_line(error)}. {reason()} {self._advice()}"
            ) from error

    @contextmanager
    def training(self) -> Iterator[None]:
        """Around all of training: what ran out of memory outside of any pass says so."""
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._optimizer.running:
                where, advice = "in the optimizer's step", self._optimizer_advice()
            else:
                where, advice = "between the passes", self._advice()
            raise StepTooLargeError(f"out of memory {where}: {first_line(error)}. {advice}") from error

    def note(self, lists: MutableMapping[str, list[float]], failures: int) -> None:
        """Count what ran again.

        Args:
            lists: TRL's metric lists, whose means are logged.
            failures: how often.
        """
        self.count += failures
        lists[RETRIES] = [sum(lists.get(RETRIES, [])) + failures]  # one value, so that the mean is the sum

    def _count(self, failures: int) -> None:
        self.note(_trl.metrics_of(self._trainer), failures)

    def _scoring_refusal(self, *, router: bool) -> str | None:
        if router:
            return "the router's load-balancing loss is computed over all tokens of a pass"
        reason: str | None = self._trainer.engine.rows_refusal()
        return reason

    def _seams(self) -> Seams:
        trainer = self._trainer
        engine = trainer.engine

        def shrink(tokens: int) -> None:
            engine.tokens_per_pass = tokens

        return Seams(
            trainer.model,
            lists=lambda: _trl.metrics_of(trainer),
            state=lambda: [*((part, None) for part in _trl.parts_with_state(trainer)), (trainer, _trl.STEP_STATE)],
            flags=lambda: [(trainer.accelerator.gradient_state, ("sync_gradients",))],
            window=lambda: int(trainer.state.global_step),
            part=lambda: engine.tokens_per_pass,
            shrink=shrink,
            refusal=lambda: _update_refusal(trainer),
            advice=self._advice,
            count=self._count,
        )


def _update_refusal(trainer: Any) -> str | None:
    """Why an update cannot run again in smaller parts, in words; None if it can."""
    optim = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    hooked = any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in trainer.model.parameters())
    if hooked or "lomo" in optim:
        return f"the optimizer ({optim}) changes weights within the backward pass"
    reason: str | None = trainer.engine.split_refusal(trainer.model)
    return reason


class _OptimizerStep(TrainerCallback):
    """Knows whether the optimizer's step is running."""

    def __init__(self) -> None:
        self.running = False

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A new window: an earlier step may have ended in an error."""
        self.running = False

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """It begins."""
        self.running = True

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """It is over."""
        self.running = False

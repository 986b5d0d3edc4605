"""Out of memory in a trainer: retry in smaller parts, or end with advice."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_plus.memory.advice import STATES
from grpo_plus.memory.errors import StepTooLargeError, first_line, is_out_of_memory
from grpo_plus.memory.snapshot import random_state
from grpo_plus.memory.update import Scoring, Seams, Update
from grpo_plus.training.hooks import Prepare, TrainerStage
from grpo_plus.training.update.advice import advice_for
from grpo_plus.training.update.engine import UpdateEngine
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import metric_lists
from grpo_plus.trl.rollout import STEP_STATE

RETRIES = "memory/retries"
"""Metric: passes since the last log that ran again in smaller parts."""
_AT_ONCE = "A reward model reads all completions of a generation batch at once: lower steps_per_generation."


class Retry(TrainerStage):
    """Runs the passes of a trainer again in smaller parts if memory runs out, and counts the retries.

    The engine bounds the passes of an update. ``changed`` are the objects whose attributes a micro-batch changes.
    """

    name = "retry"
    rank_local = True

    def __init__(self, engine: UpdateEngine, changed: Sequence[Any]) -> None:
        self.count = 0
        self._engine = engine
        self._changed = changed
        self._optimizer_runs = False

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self._update = Update(self._seams())
        self._scoring = Scoring(
            snapshot=lambda: random_state({parameter.device for parameter in host.model.parameters()}),
            advice=lambda: advice_for(self.host),
            count=lambda failures: self.note(metric_lists(self.host), failures),
        )

    def state_dict(self) -> dict[str, Any]:
        return {} if self._scoring.most_rows is None else {"most_rows": self._scoring.most_rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scoring.most_rows = int(state["most_rows"])

    def inputs(self, prepare: Prepare) -> Any:
        """Return the micro-batch to run: a new one, or the same as before in a retry."""
        return self._update.inputs(prepare)

    def step(self, run: Callable[[], Tensor]) -> Tensor:
        """Run one micro-batch, forward and backward, in as many parts as needed."""
        return self._update.run(run)

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
        """Call TRL's ``_get_per_token_logps_and_entropies``; without gradient, in as many parts as needed."""
        keywords = {"compute_entropy": compute_entropy, **further}
        scores = partial(score, model, input_ids, attention_mask, logits_to_keep, **keywords)
        if torch.is_grad_enabled():
            return scores(batch_size=batch_size)
        return self._scoring.run(
            lambda size: scores(batch_size=size),
            rows=input_ids.shape[0],
            batch_size=batch_size,
            refusal=lambda: self._scoring_refusal(router=bool(further.get("compute_aux_loss"))),
        )

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
            raise StepTooLargeError(
                f"out of memory while {where}: {first_line(error)}. {reason()} {advice_for(self.host)}"
            ) from error

    @contextmanager
    def training(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._optimizer_runs:
                where, advice = "in the optimizer's step", f"Its state is allocated there. {STATES}."
            else:
                where, advice = "between the passes", advice_for(self.host)
            raise StepTooLargeError(f"out of memory {where}: {first_line(error)}. {advice}") from error

    def note(self, lists: MutableMapping[str, list[float]], failures: int) -> None:
        """Count passes that ran again in TRL's metric lists, whose means are logged."""
        self.count += failures
        lists[RETRIES] = [sum(lists.get(RETRIES, [])) + failures]  # one value, so that the mean is the sum

    def _scoring_refusal(self, *, router: bool) -> str | None:
        if router:
            return "the router's load-balancing loss is computed over all tokens of a pass"
        return self._engine.engine.rows_refusal()

    def _seams(self) -> Seams:
        host = self.host

        def shrink(tokens: int) -> None:
            self._engine.engine.tokens_per_pass = tokens

        def state() -> list[tuple[Any, Any]]:
            return [*((part, None) for part in self._changed), (host, STEP_STATE)]

        return Seams(
            host.model,
            lists=lambda: metric_lists(host),
            state=state,
            flags=lambda: [(host.accelerator.gradient_state, ("sync_gradients",))],
            window=lambda: int(host.state.global_step),
            part=lambda: self._engine.engine.tokens_per_pass,
            shrink=shrink,
            refusal=self._update_refusal,
            advice=lambda: advice_for(self.host),
            count=lambda failures: self.note(metric_lists(self.host), failures),
        )

    def _update_refusal(self) -> str | None:
        """Return the reason why an update cannot run again in smaller parts, or None."""
        optim = str(getattr(self.host.args.optim, "value", self.host.args.optim))
        parameters = self.host.model.parameters()
        hooked = any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters)
        if hooked or "lomo" in optim:
            return f"the optimizer ({optim}) changes weights during the backward pass"
        return self._engine.engine.split_refusal(self.host.model)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._optimizer_runs = False

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer_runs = True

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._optimizer_runs = False

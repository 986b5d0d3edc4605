"""The update engine in a trainer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from grpo_plus.engine import Engine, facts_of
from grpo_plus.engine.forward import leave_out_cudnn
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.sampling.in_step import reshard
from grpo_plus.training.hooks import Score, TrainerStage
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import plain_model
from grpo_plus.trl.rollout import reorder_buffer


class UpdateEngine(TrainerStage):
    """Runs the log-probability passes of a trainer through the engine, which is built once the trainer is loaded."""

    name = "engine"
    rank_local = True
    engine: Engine

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self.engine = Engine(
            self._recipe.engine.layout,
            self._recipe.engine.tokens_per_pass,
            facts=lambda: facts_of(host, self._recipe.objective),
            autocast=host.accelerator.autocast,
            unwrap=partial(plain_model, host),
        )
        self.engine.check(host.model)
        leave_out_cudnn(host.accelerator.device)

    def shifted(self) -> str | None:
        """Return the reason why padding on the left changes the model's scores; None with relative positions."""
        return self.engine.shifted(self.host.model, self.host.accelerator.device)

    def arrange(self, micro: Any) -> Any:
        """Return the micro-batch from a generation batch whose rows are laid out for the update."""
        return reorder_buffer(self.host, micro, self.engine.arrange)

    def logps(self, trl: Score, *arguments: Any, **keywords: Any) -> Any:
        """Compute log-probabilities and entropies from fewer tokens than TRL's own pass."""
        scored = self.engine.score(trl, *arguments, **keywords)
        if self.host.is_fsdp_enabled and not torch.is_grad_enabled():
            # FSDP2 would keep the weights unsharded until a backward pass: a reference has none and could not be
            # refreshed, and adapters that are off for a reference pass would get no gradient in the training pass.
            reshard(arguments[0])
        return scored

    @contextmanager
    def computing_loss(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Around the loss of a micro-batch: rows without a gradient need not run."""
        with self.engine.loss_on(inputs):
            yield
        log_metrics(self.host, self.engine.metrics)

    def state_dict(self) -> dict[str, Any]:
        """The bound on a pass, if memory has run out, and the entropy that other ranks may wait for."""
        bound, configured = self.engine.tokens_per_pass, self._recipe.engine.tokens_per_pass
        state: dict[str, Any] = {} if bound == configured else {"tokens_per_pass": bound, "asked": configured}
        return state | ({"last_entropy": entropy} if (entropy := self.engine.last_entropy) else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "tokens_per_pass" in state and state["asked"] == self._recipe.engine.tokens_per_pass:
            self.engine.tokens_per_pass = int(state["tokens_per_pass"])
        self.engine.last_entropy = float(state.get("last_entropy", 0.0))

"""The update engine in a trainer."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from grpo_plus.engine import Engine, facts_of
from grpo_plus.engine.forward import leave_out_cudnn
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.training.hooks import Compute, Hook, Prepare
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import plain_model
from grpo_plus.trl.rollout import reorder_buffer


class UpdateEngine(Hook):
    """Runs the log-probability passes of a trainer through the engine, which is there once the trainer is loaded."""

    name = "engine"
    after = ("Drift", "Pieces", "Retry", "Supports")  # `logps` may skip the hooks inside it
    rank_local = True
    engine: Engine

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def after_loading(self, host: Host) -> None:
        """Make the engine; refuse a layout that cannot be had."""
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
        """Why padding on the left changes what the model scores, in words; None where its positions are relative."""
        return self.engine.shifted(self.host.model, self.host.accelerator.device)

    def inputs(self, prepare: Prepare) -> Any:
        """The micro-batch, from a generation batch whose rows are laid out for the update."""
        return reorder_buffer(self.host, prepare(), self.engine.arrange)

    def logps(self, score: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """From fewer tokens."""
        return self.engine.score(score, *arguments, **keywords)

    def loss(self, compute: Compute, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Rows without a gradient need not run."""
        with self.engine.loss_on(inputs):
            loss = compute(model, inputs)
        log_metrics(self.host, self.engine.metrics)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The bound on a pass that running out of memory has left, and the entropy that other ranks may wait for."""
        learnt, asked = self.engine.tokens_per_pass, self._recipe.engine.tokens_per_pass
        state: dict[str, Any] = {} if learnt == asked else {"tokens_per_pass": learnt, "asked": asked}
        return state | ({"last_entropy": entropy} if (entropy := self.engine.last_entropy) else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the bound, unless the config has another one by now."""
        if "tokens_per_pass" in state and state["asked"] == self._recipe.engine.tokens_per_pass:
            self.engine.tokens_per_pass = int(state["tokens_per_pass"])
        self.engine.last_entropy = float(state.get("last_entropy", 0.0))

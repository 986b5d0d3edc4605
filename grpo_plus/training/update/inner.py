"""Inner iterations on a generation batch: their count, and early stopping."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from grpo_plus.training.hooks import TrainerStage
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.rollout import buffered_batches, mark_optimizer_step, micro_step, skip_step
from grpo_verifiers.errors import raise_all

_BY = "stop_fraction"


class InnerIterations(TrainerStage):
    """Skips the remaining iterations on a generation batch once enough tokens have settled.

    A step is one micro-batch; an iteration is one pass over the generation batch; a block is all iterations on it,
    after which a new batch is generated. All ranks count together and decide alike.

    A skipped optimizer step counts neither for the learning rate's schedule nor for the warm-up of the KL term.

    ``share`` of the pulled tokens must have settled; None never stops. ``passed`` counts the optimizer steps skipped so
    far. Checkpoints store it and the counts of the current block.
    """

    name = "inner_iterations"

    def __init__(self, share: float | None = None) -> None:
        self.share = share
        self.steps = self.iterations = 1
        self.passed = 0
        self._skipped = False
        self._begin_block()

    def _begin_block(self) -> None:
        self._counts: Tensor | None = None  # settled and pulled tokens of this iteration on this rank
        self._stopped = self._untrained = False

    @property
    def stops(self) -> bool:
        """True if the iterations on a batch may end early."""
        return self.share is not None

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self.steps, self.iterations = host.args.steps_per_generation, host.num_iterations
        if self.stops:
            raise_all(check_clean_steps(host.accelerator))

    def training(self) -> AbstractContextManager[None]:
        self.passed = 0
        self._begin_block()
        return nullcontext()

    def iteration(self, step: int) -> int:
        """Return the number of a step's iteration in its block, from 1."""
        return step // self.steps % self.iterations + 1

    def step(self, run: Callable[[], Tensor]) -> Tensor:
        """Run a micro-batch, unless the iterations on its generation batch are over."""
        step = micro_step(self.host)
        if step % (self.steps * self.iterations) == 0 or buffered_batches(self.host) is None:
            self._begin_block()
        self._skipped = self._stopped
        if self._skipped:
            skip_step(self.host)
            log_metrics(self.host, {"inner/skipped": 1.0})
            return torch.zeros((), device=self.host.accelerator.device)
        loss = run()
        if (step + 1) % self.steps == 0:
            log_metrics(self.host, self._finish())
        return loss

    def observe(self, settled: Tensor, pulled: Tensor) -> None:
        """Count one micro-batch's tokens."""
        if self.share is None:
            return
        counts = torch.stack([(settled & pulled).sum(), pulled.sum()]).float()
        self._counts = counts if self._counts is None else self._counts + counts

    def leave_out_iteration(self) -> None:
        """Ignore the current iteration: the policy was not trained on a micro-batch of it."""
        self._untrained = True

    def _finish(self) -> dict[str, float]:
        """Decide after the last micro-batch of an iteration, and return metrics; no pulled token at all is enough."""
        counts, untrained = self._counts, self._untrained
        self._counts, self._untrained = None, False
        if counts is None or untrained or self.share is None:
            return {}
        settled, pulled = self.host.accelerator.reduce(counts, reduction="sum").tolist()
        share = settled / pulled if pulled else 1.0
        self._stopped = share >= self.share
        return {"inner/settled": share}

    def on_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Mark a skipped step before the schedule moves."""
        if self.stops:
            mark_optimizer_step(optimizer, skipped=self._skipped, by=_BY)
            self.passed += self._skipped

    def on_train_end(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        if self.stops:
            mark_optimizer_step(optimizer, skipped=False, by=_BY)

    def state_dict(self) -> dict[str, Any]:
        if not self.stops:
            return {}
        counts = None if self._counts is None else self.host.accelerator.reduce(self._counts, reduction="sum").tolist()
        state = {"passed": self.passed, "stopped": self._stopped, "counts": counts}
        return state | ({"untrained": True} if self._untrained else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts; one rank takes the tokens of all."""
        if not self.stops:
            raise ValueError("nothing is skipped without stop_fraction")
        self.passed, self._stopped = int(state["passed"]), bool(state.get("stopped", False))
        self._untrained = bool(state.get("untrained", False))
        counts, accelerator = state.get("counts"), self.host.accelerator
        if counts is not None:
            total = torch.tensor(counts, dtype=torch.float32, device=accelerator.device)
            self._counts = total if accelerator.is_main_process else torch.zeros_like(total)


def check_clean_steps(accelerator: Any) -> list[str]:
    """Return problems of skipped steps that depend on the running accelerator."""
    problems = []
    if accelerator.scaler is not None:
        problems.append(
            "stop_fraction leaves optimizer steps without gradients, which a gradient scaler (mixed precision fp16) "
            "cannot take: use bf16, or remove stop_fraction."
        )
    if str(accelerator.distributed_type).endswith("DEEPSPEED"):
        problems.append(
            "stop_fraction leaves optimizer steps without gradients, which DeepSpeed's engine cannot take: use DDP or "
            "FSDP, or remove stop_fraction."
        )
    return problems

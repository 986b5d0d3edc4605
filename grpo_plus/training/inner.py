"""Inner iterations on a generation batch: how often the policy moves on it, and when the rest of them is skipped."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from grpo_plus import _trl

_KEY = "grpo_plus_passed_steps"


class InnerIterations(TrainerCallback):
    """Counts settled tokens over each full iteration on a generation batch, and says when the rest is to be skipped.

    A step is one micro-batch; an iteration is ``steps`` of them, one pass over the generation batch; a block is
    ``iterations`` of those, after which a new batch is generated. All ranks count together and decide alike.

    An optimizer step that was skipped does not count: neither for the learning rate's schedule nor for the warm-up of
    the KL term.

    Args:
        share: stop when at least this share of the pulled tokens has settled; None never stops.
        steps: micro-batches in one iteration.
        iterations: iterations in a block.
        total: sums a tensor over the ranks.

    Attributes:
        passed: the optimizer steps that were skipped so far; checkpoints keep it.
    """

    def __init__(self, share: float | None, *, steps: int, iterations: int, total: Callable[[Tensor], Tensor]) -> None:
        self.share = share
        self.steps = steps
        self.iterations = iterations
        self._total = total
        self._counts: Tensor | None = None
        self._stopped = False
        self._skipped = False
        self.passed = 0

    def iteration(self, step: int) -> int:
        """Which iteration of its block a step belongs to, from 1."""
        return step // self.steps % self.iterations + 1

    def skips(self, step: int) -> bool:
        """Whether this step is to run no forward and no backward."""
        if step % (self.steps * self.iterations) == 0:
            self._stopped, self._counts = False, None
        self._skipped = self._stopped
        return self._skipped

    def observe(self, settled: Tensor, pulled: Tensor) -> None:
        """Count one micro-batch's tokens."""
        if self.share is None:
            return
        counts = torch.stack([(settled & pulled).sum(), pulled.sum()]).float()
        self._counts = counts if self._counts is None else self._counts + counts

    def finish(self, step: int) -> float | None:
        """Decide after the last micro-batch of an iteration; returns the settled share where it was measured.

        With no pulled token at all there is nothing left to do.
        """
        if self.share is None or (step + 1) % self.steps or self._counts is None:
            return None
        settled, pulled = self._total(self._counts).tolist()
        share = settled / pulled if pulled else 1.0
        self._stopped, self._counts = share >= self.share, None
        return float(share)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the host's call
        """Go on from a checkpoint's count."""
        self.passed = int((state.stateful_callbacks or {}).get(_KEY, {}).get("passed", 0))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - same
        """Say whether the step that was just made is one, before the schedule moves."""
        _trl.mark_step(kwargs["optimizer"], skipped=self._skipped)
        self.passed += self._skipped
        state.stateful_callbacks[_KEY] = {"passed": self.passed}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - same
        """Leave no mark on the optimizer."""
        _trl.mark_step(kwargs["optimizer"], skipped=False)


def check_clean_steps(accelerator: Any) -> list[str]:
    """Problems of ``stop_fraction`` that only the running accelerator shows."""
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

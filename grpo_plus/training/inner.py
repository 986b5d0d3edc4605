"""Inner iterations on a generation batch: their count, and the end of those that have nothing left to do."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.checkpoints.folder import trainer_state
from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import raise_all


class InnerIterations(Hook):
    """Counts settled tokens over each full iteration on a generation batch, and skips the rest once enough have.

    A step is one micro-batch; an iteration is one pass over the generation batch; a block is all iterations on it,
    after which a new batch is generated. All ranks count together and decide alike.

    A skipped optimizer step counts neither for the learning rate's schedule nor for the warm-up of the KL term.

    ``share`` of the pulled tokens must have settled; None never stops. ``passed`` counts the optimizer steps skipped so
    far. Checkpoints keep it, and what is known of the block that they stand in.
    """

    name = "inner_iterations"

    def __init__(self, share: float | None) -> None:
        self.share = share
        self.steps = self.iterations = 1
        self.passed = 0
        self._counts: Tensor | None = None
        self._stopped = False
        self._skipped = False

    def after_loading(self, host: Host) -> None:
        """Read the lengths; refuse an accelerator that cannot skip steps."""
        super().after_loading(host)
        self.steps, self.iterations = host.args.steps_per_generation, host.num_iterations
        if self.share is not None:
            raise_all(check_clean_steps(host.accelerator))

    def training(self) -> AbstractContextManager[None]:
        """No step of this run is skipped yet."""
        self.passed, self._counts, self._stopped = 0, None, False
        return nullcontext()

    def iteration(self, step: int) -> int:
        """Number of the iteration in its block that a step belongs to, from 1."""
        return step // self.steps % self.iterations + 1

    def step(self, run: Callable[[], Tensor]) -> Tensor:
        """A micro-batch, unless the iterations on its generation batch are over."""
        step = _trl.step_of(self.host)
        if self.skips(step):
            _trl.pass_over_step(self.host)
            _trl.log(self.host, {"inner/skipped": 1.0})
            return torch.zeros((), device=self.host.accelerator.device)
        loss = run()
        share = self._finish(step)
        if share is not None:
            _trl.log(self.host, {"inner/settled": share})
        return loss

    def skips(self, step: int) -> bool:
        """Skip this step: no forward and no backward."""
        if step % (self.steps * self.iterations) == 0 or _trl.buffer(self.host) is None:
            self._stopped, self._counts = False, None
        self._skipped = self._stopped
        return self._skipped

    def observe(self, settled: Tensor, pulled: Tensor) -> None:
        """Count one micro-batch's tokens."""
        if self.share is None:
            return
        counts = torch.stack([(settled & pulled).sum(), pulled.sum()]).float()
        self._counts = counts if self._counts is None else self._counts + counts

    def _finish(self, step: int) -> float | None:
        """Decide after the last micro-batch of an iteration; returns the settled share where it was measured.

        With no pulled token at all there is nothing left to do.
        """
        if self.share is None or (step + 1) % self.steps or self._counts is None:
            return None
        settled, pulled = self.host.accelerator.reduce(self._counts, reduction="sum").tolist()
        share = settled / pulled if pulled else 1.0
        self._stopped, self._counts = share >= self.share, None
        return float(share)

    def on_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Say whether the step that was just made is one, before the schedule moves."""
        if self.share is not None:
            _trl.mark_step(optimizer, skipped=self._skipped)
            self.passed += self._skipped

    def on_train_end(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Leave no mark on the optimizer."""
        if self.share is not None:
            _trl.mark_step(optimizer, skipped=False)

    def state_dict(self) -> dict[str, Any]:
        """The count of skipped steps, where any can be; of the present block, its end and the tokens of all ranks."""
        if self.share is None:
            return {}
        counts = None if self._counts is None else self.host.accelerator.reduce(self._counts, reduction="sum").tolist()
        return {"passed": self.passed, "stopped": self._stopped, "counts": counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's counts, where any step can be skipped; one rank has the tokens of all."""
        if self.share is None:
            raise ValueError("no step is skipped without stop_fraction")
        self.passed, self._stopped = int(state["passed"]), bool(state.get("stopped", False))
        counts, accelerator = state.get("counts"), self.host.accelerator
        if counts is not None:
            whole = torch.tensor(counts, dtype=torch.float32, device=accelerator.device)
            self._counts = whole if accelerator.is_main_process else torch.zeros_like(whole)

    def former_state(self, checkpoint: Path) -> dict[str, Any] | None:
        """The count among the states of callbacks."""
        state: dict[str, Any] | None = trainer_state(checkpoint)["stateful_callbacks"].get("grpo_plus_passed_steps")
        return state


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

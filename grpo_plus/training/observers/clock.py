"""The time of an optimizer step by parts: drawing completions, scoring them, and the rest, which is the update."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from grpo_plus.training.hooks import TrainerStage
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_training_metrics

PARTS = ("rollout", "scoring", "update")
"""Parts of a step: drawing completions, rewards, and everything else (log-probabilities of the old and the
reference policy, forward and backward passes, the optimizer)."""


def metric(part: str) -> str:
    """The name under which a part's seconds are logged: of an optimizer step, the mean since the last log."""
    return f"time/{part}"


class StepClock(TrainerStage):
    """Adds up the seconds of each part of a step; a part that begins inside another one pauses it.

    CUDA runs asynchronously, so each border between two parts waits for the GPU: about six waits a step.
    """

    name = "clock"
    begins_anew = True

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self._waits = False
        self._seconds = dict.fromkeys(PARTS, 0.0)

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self._waits = host.accelerator.device.type == "cuda"

    @contextmanager
    def part(self, name: str, *, counts: bool = True) -> Iterator[None]:
        """Count the time inside the block for one of ``PARTS``; without ``counts`` do not, as in evaluation."""
        if not counts:
            yield
            return
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def _book(self) -> None:
        if self._waits:
            torch.cuda.synchronize()
        now = self._clock()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now

    def sampling(self) -> AbstractContextManager[None]:
        """Around sampling for training."""
        return self.part("rollout", counts=self.host.model.training)

    def scoring(self) -> AbstractContextManager[None]:
        """Around rewards for training."""
        return self.part("scoring", counts=self.host.model.training)

    def step(self) -> AbstractContextManager[None]:
        """Around a micro-batch of the update."""
        return self.part("update")

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": dict(self._seconds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seconds = {name: float(state["seconds"][name]) for name in PARTS}

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Count the optimizer's own step as update."""
        self._book()
        self._open.append("update")

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self._open:
            self._book()
            self._open.pop()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._open.clear()
        log_training_metrics(self.host, {metric(name): seconds for name, seconds in self._seconds.items()})
        self._seconds = dict.fromkeys(PARTS, 0.0)

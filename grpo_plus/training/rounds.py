"""Rounds in a trainer: what is done at the end of each, all ranks alike, and the line about it in the record.

A round ends with the optimizer step that uses a generation batch up, so that no batch sees two references.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from grpo_plus import _trl
from grpo_plus.recipe.recipe import RoundsOptions
from grpo_plus.training.hooks import Hook


class Rounds(Hook):
    """Counts rounds and ends them.

    ``ends`` has what is done at the end by the names in `RoundsOptions.does`; ``record`` takes a line about it.
    ``number`` rounds have ended so far, the last of them after the optimizer step ``ended``.
    """

    name = "rounds"

    def __init__(
        self,
        options: RoundsOptions,
        ends: Mapping[str, Callable[[], object]],
        record: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        self._options, self._ends, self._record = options, ends, record
        self.number = self.ended = 0

    def training(self) -> AbstractContextManager[None]:
        """A new run is in its first round."""
        self.number = self.ended = 0
        return nullcontext()

    def batch(self, output: dict[str, Any]) -> None:  # noqa: ARG002
        """Log which round a generation batch of training belongs to."""
        if self.host.model.training:
            _trl.log(self.host, {"rounds/number": float(self.number + 1)})

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End the round, where it is time and a generation batch ends with this step.

        The last accumulation window of a pass over the data may be shorter: the round then ends with the next batch.
        """
        step = int(self.host.state.global_step)
        if step - self.ended < self._options.every or _trl.open_batch(self.host) is not None:
            return
        begun, first = time.perf_counter(), self.ended + 1
        for name in self._options.does:
            self._ends[name]()
        self.number, self.ended = self.number + 1, step
        if self._record is not None:
            line = {"kind": "round", "step": step, "number": self.number, "first": first}
            self._record({**line, "did": list(self._options.does), "seconds": time.perf_counter() - begun})

    def state_dict(self) -> dict[str, Any]:
        """How many rounds have ended, and when the last one did."""
        return {"number": self.number, "ended": self.ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the round of the checkpoint."""
        self.number, self.ended = int(state["number"]), int(state["ended"])

"""What a run carries from one optimizer step to the next on each process: the generation batch and unlogged metrics."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from grpo_plus import _trl
from grpo_plus.training.hooks import Hook
from grpo_plus.training.reward_table import IN_MAIN_MEMORY
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)
_PLAIN = (bool, int, float, str)


class UnstorableError(TypeError):
    """A value is neither a tensor nor made of JSON values."""


def packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON values; its tensors go into ``tensors``, under names that start with ``name``."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [packed(item, f"{name}/{place}", tensors) for place, item in enumerate(value)]}
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {"mapping": {key: packed(item, f"{name}/{key}", tensors) for key, item in value.items()}}
    raise UnstorableError(f"{name} is a {type(value).__module__}.{type(value).__qualname__}")


def unpacked(value: Any, tensors: Mapping[str, Tensor], device: Any) -> Any:
    """What `packed` made a description of, on this device but for what a batch keeps in main memory."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content].to(device)
    if kind == "mapping":
        return {
            key: unpacked(item, tensors, "cpu" if key in IN_MAIN_MEMORY else device) for key, item in content.items()
        }
    items = [unpacked(item, tensors, device) for item in content]
    return tuple(items) if kind == "tuple" else items


class GenerationBatch(Hook):
    """Keeps in a checkpoint what the next step goes on with; nothing where ``save_only_model`` is set.

    That is the micro-batches of a generation batch which is not used up yet, as the engine arranged them; the metrics
    and the loss since the last log; and what `log_completions` will write.
    """

    name = "generation_batch"
    rank_local = True

    def __init__(self) -> None:
        self._warned = False
        self._trains = False
        self._state: Mapping[str, Any] = {}
        self._tensors: Mapping[str, Tensor] = {}

    def training(self) -> AbstractContextManager[None]:
        """A new run goes on from nothing."""
        self._trains, self._state, self._tensors = False, {}, {}
        return nullcontext()

    def _kept(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        host = self.host
        if host.args.save_only_model or not self._trains:
            return {}, {}
        state, tensors = _trl.between_logs(host)
        batch = _trl.open_batch(host)
        if batch is not None:
            found: dict[str, Tensor] = {}
            try:
                state["batch"] = [packed(part, str(place), found) for place, part in enumerate(batch)]
            except UnstorableError as error:
                self._warn(error)
            else:
                tensors |= found
        return state, tensors

    def _warn(self, error: UnstorableError) -> None:
        if not self._warned and self.host.accelerator.is_main_process:
            logger.warning(
                "a checkpoint cannot hold the generation batch: %s, neither a tensor nor made of JSON values. A run "
                "that resumes inside a batch goes back to its start, with new completions.",
                error,
            )
        self._warned = True

    def state_dict(self) -> dict[str, Any]:
        """All but the tensors."""
        return self._kept()[0]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the batch, the loss and the metrics since the last log."""
        return self._kept()[1]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it, once the run begins."""
        self._state = state

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Those that the state speaks of."""
        self._tensors = tensors

    def is_held(self) -> bool:
        """Every process has its part of a generation batch to go on with."""
        return all(_trl.gather_objects(["batch" in self._state]))

    def begin(self, step: int, *, keep: bool) -> None:
        """Start at a micro-batch, with the generation batch of the checkpoint where it is to be kept."""
        batch = unpacked({"list": self._state["batch"]}, self._tensors, self.host.accelerator.device) if keep else None
        _trl.set_batch(self.host, step, batch)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Go on with what is not logged yet."""
        if self._state or self._tensors:
            _trl.set_between_logs(self.host, self._state, self._tensors)
        self._trains, self._state, self._tensors = True, {}, {}

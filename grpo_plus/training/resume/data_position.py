"""The position of a run in its data and in its generation batch: a resumed run continues exactly there.

The host counts optimizer steps only. Passes over the data are counted here, and the micro-batches of a pass, since a
stream has no length. A pending evaluation at the end of a step or pass runs before the next micro-batch.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo_plus.memory.snapshot import random_state, together
from grpo_plus.training.hooks import IN_MAIN_MEMORY, TrainerStage
from grpo_plus.training.resume.run_changes import ResumeCheck
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import (
    evaluation_enabled,
    load_random_state,
    pending_logs,
    restore_pending_logs,
    run_pending_evaluation,
    snapshot_logs,
)
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.rollout import micro_step, restore_batches, unfinished_batches
from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus")
_PLAIN = (bool, int, float, str)


@dataclass(frozen=True)
class Geometry:
    """The units of a position in the data."""

    processes: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_generations: int
    num_iterations: int

    @classmethod
    def of(cls, host: Host) -> "Geometry":
        """Read it from a trainer."""
        args = host.args
        return cls(
            host.accelerator.num_processes,
            args.per_device_train_batch_size,
            args.gradient_accumulation_steps,
            args.steps_per_generation,
            host.num_generations,
            host.num_iterations,
        )

    @property
    def block(self) -> int:
        """Micro-batches of one process for one generation batch."""
        return self.steps_per_generation * self.num_iterations

    @property
    def prompts(self) -> int:
        """Prompts of a generation batch."""
        return self.processes * self.per_device_train_batch_size * self.steps_per_generation // self.num_generations


@dataclass(frozen=True)
class Position:
    """A place between two optimizer steps.

    ``step`` counts micro-batches of the run, ``taken`` those of pass number ``passes``, from 0. ``ended``: that pass is
    over, with its logs, evaluation and checkpoint.
    """

    step: int = 0
    passes: int = 0
    taken: int = 0
    ended: bool = False


def position(saved: Position, was: Geometry, now: Geometry, *, holds_batch: bool) -> Position:
    """Return the position of a resumed run that was saved at ``saved``, under ``was``.

    Without its generation batch it returns to the start of the batch: no data is skipped, and batches stay in phase.
    """
    if was == now and (holds_batch or saved.step % now.block == 0):
        return saved
    batches = saved.taken // was.block * was.prompts // now.prompts
    return start_of_batch(replace(saved, taken=batches * now.block), now)


def start_of_batch(saved: Position, now: Geometry) -> Position:
    """Return the start of a position's generation batch, or of the last one before it that begins a step."""
    start = saved.taken - saved.taken % lcm(now.block, now.gradient_accumulation_steps)
    return replace(saved, step=start, taken=start)


class UnstorableError(TypeError):
    """A value is neither a tensor nor JSON."""


def packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Convert a value to JSON values; move its tensors to ``tensors``, under names that start with ``name``."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [packed(item, f"{name}/{place}", tensors) for place, item in enumerate(value)]}
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {"mapping": {key: packed(item, f"{name}/{key}", tensors) for key, item in value.items()}}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise UnstorableError(f"a checkpoint holds tensors and JSON values alone, and {name} of its batch is a {kind}")


def unpacked(value: Any, tensors: Mapping[str, Tensor], device: Any) -> Any:
    """Restore a value from `packed` on this device, except for keys of `IN_MAIN_MEMORY`."""
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


class GenerationBatch(TrainerStage):
    """Saves the unfinished generation batch in a checkpoint; nothing with ``save_only_model``.

    The state has its micro-batches, as the engine arranged them, the metrics and the loss since the last log, and the
    table of `log_completions`.
    """

    name = "generation_batch"
    rank_local = True

    def __init__(self) -> None:
        self._trains = False
        self._state: Mapping[str, Any] = {}
        self._tensors: Mapping[str, Tensor] = {}

    def training(self) -> AbstractContextManager[None]:
        self._trains, self._state, self._tensors = False, {}, {}
        return nullcontext()

    def _packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        host = self.host
        if host.args.save_only_model or not self._trains:
            return {}, {}
        state, tensors = pending_logs(host)
        batch = unfinished_batches(host)
        if batch is not None:
            state["batch"] = [packed(part, str(place), tensors) for place, part in enumerate(batch)]
        return state, tensors

    def state_dict(self) -> dict[str, Any]:
        return self._packed()[0]

    def tensors(self) -> dict[str, Tensor]:
        return self._packed()[1]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def holds_batch(self) -> bool:
        """Return True if every process has its part of a generation batch in the checkpoint."""
        return all(gather_objects(["batch" in self._state]))

    def begin(self, step: int, *, restore: bool = False) -> None:
        """Start at a micro-batch, and ``restore`` the generation batch of the checkpoint."""
        device = self.host.accelerator.device
        batch = unpacked({"list": self._state["batch"]}, self._tensors, device) if restore else None
        restore_batches(self.host, step, batch)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self._state or self._tensors:
            restore_pending_logs(self.host, self._state, self._tensors)
        self._trains, self._state, self._tensors = True, {}, {}


class DataPosition(TrainerStage):
    """Saves the position of a run in its checkpoints, and moves a resumed run there.

    ``sampler`` is that of the training data, if any. ``evaluates``: an evaluation of the present step is pending.
    """

    name = "data_position"
    begins_anew = True

    def __init__(self, batch: GenerationBatch, check: ResumeCheck) -> None:
        self._check = check
        self._batch = batch
        self._forget()

    def _forget(self) -> None:
        self.sampler: Any = None
        self.evaluates = self._finished = False
        self._saved: Mapping[str, Any] | None = None
        self._start: Position | None = None  # until its pass begins
        self._checkpoint: str | None = None  # until its random state is loaded
        self._passes, self._origin, self._ended = 0, 0, False
        self._measured: tuple[Any, float | None] = (None, None)

    def training(self) -> AbstractContextManager[None]:
        self._forget()
        return nullcontext()

    @property
    def current(self) -> Position:
        """The present position."""
        if self._start is not None:
            return self._start
        step = micro_step(self.host)
        return Position(step, self._passes, step - self._origin, self._ended)

    def state_dict(self) -> dict[str, Any]:
        geometry = asdict(Geometry.of(self.host))
        norm, rate = self._measured
        measured = [None if norm is None else float(norm), rate]
        pending = {"evaluates": self.evaluates, "measured": measured, "training": self.host.model.training}
        return {"position": asdict(self.current), "geometry": geometry, **pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        Position(**state["position"]), Geometry(**state["geometry"])
        self._measured = tuple(state["measured"])
        self._saved = state
        self.evaluates = bool(state["evaluates"])

    def begin(self, start: tuple[int, int], *, updates: int, passes: int, checkpoint: str | None) -> tuple[int, int]:
        """Start a run; return its first pass and the micro-batches to skip there.

        ``start`` is the host's own result, for ``updates`` in each of the ``passes``.
        """
        host, now = self.host, Geometry.of(self.host)
        self._updates = updates
        if checkpoint is None:
            self._batch.begin(0)
            self._start = Position()
            return start
        self._checkpoint = checkpoint
        restore, saved = self._resume(start, now, checkpoint)
        self._finished = host.state.global_step >= host.state.max_steps
        self._batch.begin(saved.step, restore=restore)
        self._start = saved
        over = saved.ended or self._epoch_done(saved)
        if host.args.ignore_data_skip:
            self._batch.begin(0)
            self._start = Position(0, saved.passes)
            return (passes if self._finished else saved.passes + over), 0
        first = saved.passes
        if self._finished or (over and not saved.ended):
            # More than the pass has: the host continues at its end.
            skipped = updates * now.gradient_accumulation_steps
        elif saved.ended:
            first, skipped = saved.passes + 1, 0
            self._start = Position(saved.step, first)
        else:
            skipped = saved.taken
        for _ in range(first):
            self._skip_pass()
        return first, skipped

    def _resume(self, start: tuple[int, int], now: Geometry, checkpoint: str) -> tuple[bool, Position]:
        """Return True to restore the generation batch of the checkpoint, and the position."""
        if self._saved is None:  # a checkpoint of the host's own trainer: its position counts
            return False, start_of_batch(Position(0, *start), now)
        saved, was = Position(**self._saved["position"]), Geometry(**self._saved["geometry"])
        restore = not self._check.changed and self._batch.holds_batch()
        resumed = position(saved, was, now, holds_batch=restore)
        if resumed != saved and not self._check.changed and self.host.accelerator.is_main_process:
            logger.warning("%s does not hold its generation batch, which is sampled again.", Path(checkpoint).name)
        return restore, resumed

    def _epoch_done(self, at: Position) -> bool:
        return -(-at.taken // Geometry.of(self.host).gradient_accumulation_steps) >= self._updates

    def _skip_pass(self) -> None:
        """Advance the sampler's random state by the order of one pass."""
        if self.sampler is not None:
            next(iter(self.sampler), None)

    def measured(self, norm: Any, rate: float | None) -> tuple[Any, float | None]:
        """Return gradient norm and learning rate of the last step; in a resumed run at first the saved ones."""
        if rate is not None:
            self._measured = (norm, rate)
        return self._measured

    def restored(self) -> None:
        """Run a pending evaluation, after the host has loaded the checkpoint's random state."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None and self.evaluates and evaluation_enabled(self.host):
            run_pending_evaluation(self.host, checkpoint)
        self.evaluates = False

    def evaluation(self, run: Callable[[], dict[str, float]], *, starts: bool) -> dict[str, float]:
        """Run an evaluation, and undo its effects if it is interrupted.

        ``starts``: the one before the first step, which a resumed run skips.
        """
        host = self.host
        if starts and self._checkpoint is not None:
            return {}
        self.evaluates = True
        devices = {parameter.device for parameter in host.model.parameters()}
        mode = partial(host.model.train, host.model.training)
        undo = together(random_state(devices), snapshot_logs(host), mode)
        try:
            metrics = run()
        except BaseException:
            undo()
            raise
        self.evaluates = False
        return metrics

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        step = micro_step(self.host)
        if (start := self._start) is not None:
            self._passes, self._origin, self._ended = start.passes, step - start.taken, start.ended
            self._start = None
        else:
            self._passes, self._origin, self._ended = self._passes + 1, step, False

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Count an evaluation as pending until it has run: a signal may postpone it."""
        self.evaluates = control.should_evaluate

    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """End a pass. A run that was saved at the end of its last step resumes here."""
        if self._checkpoint is not None:
            self._skip_pass()
            if self._saved is not None:
                self.host.model.train(self._saved["training"])  # TRL's lists of metrics go by it
            load_random_state(self.host, self._checkpoint)
        if self._finished:
            control.should_training_stop = True
        if self._ended:
            control.should_log = control.should_evaluate = control.should_save = False
        self._ended = self._epoch_done(self.current) or not control.should_training_stop
        self.evaluates = control.should_evaluate

"""The position of a run in its data and in its generation batch: a resumed run goes on from exactly there.

The host knows the number of optimizer steps only. Passes over the data are counted here, and micro-batches within a
pass: a stream ends where it ends. What is owed at the end of a step or pass, an evaluation above all, is done before
the next micro-batch.
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
    """The numbers that a position in the data is counted in."""

    processes: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_generations: int
    num_iterations: int

    @classmethod
    def of(cls, host: Host) -> "Geometry":
        """That of a run."""
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
        """Micro-batches of one process that are trained on one generation batch."""
        return self.steps_per_generation * self.num_iterations

    @property
    def prompts(self) -> int:
        """Prompts of a generation batch."""
        return self.processes * self.per_device_train_batch_size * self.steps_per_generation // self.num_generations


@dataclass(frozen=True)
class Position:
    """A place between two optimizer steps.

    ``step`` counts micro-batches of the run, ``taken`` those of pass number ``passes``, from 0. ``ended``: that pass is
    over, with all that belongs to its end.
    """

    step: int = 0
    passes: int = 0
    taken: int = 0
    ended: bool = False


def position(saved: Position, was: Geometry, now: Geometry, *, holds_batch: bool) -> Position:
    """Where a run goes on that was saved at ``saved``, under ``was``.

    Without its generation batch it goes back to the start of it: nothing is passed over, and batches stay in phase.
    """
    if was == now and (holds_batch or saved.step % now.block == 0):
        return saved
    batches = saved.taken // was.block * was.prompts // now.prompts
    return start_of_batch(replace(saved, taken=batches * now.block), now)


def start_of_batch(saved: Position, now: Geometry) -> Position:
    """The start of the generation batch of a position, or the last one before it that an optimizer step begins at."""
    start = saved.taken - saved.taken % lcm(now.block, now.gradient_accumulation_steps)
    return replace(saved, step=start, taken=start)


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


class GenerationBatch(TrainerStage):
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
        state, tensors = pending_logs(host)
        batch = unfinished_batches(host)
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
        return all(gather_objects(["batch" in self._state]))

    def begin(self, step: int, *, keep: bool) -> None:
        """Start at a micro-batch, with the generation batch of the checkpoint where it is to be kept."""
        batch = unpacked({"list": self._state["batch"]}, self._tensors, self.host.accelerator.device) if keep else None
        restore_batches(self.host, step, batch)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Go on with what is not logged yet."""
        if self._state or self._tensors:
            restore_pending_logs(self.host, self._state, self._tensors)
        self._trains, self._state, self._tensors = True, {}, {}


class DataPosition(TrainerStage):
    """Keeps the position of a run in its checkpoints, and puts a resumed run there.

    ``sampler`` is that of the training data, where it has one. ``evaluates``: an evaluation of the present step is
    still to be done, or was left before its end.
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
        self._begun: Position | None = None  # until its pass begins
        self._checkpoint: str | None = None  # until its random state is loaded
        self._passes, self._origin, self._ended = 0, 0, False
        self._measured: tuple[Any, float | None] = (None, None)

    def training(self) -> AbstractContextManager[None]:
        """A new run starts at the beginning."""
        self._forget()
        return nullcontext()

    @property
    def current(self) -> Position:
        """The present position."""
        if self._begun is not None:
            return self._begun
        step = micro_step(self.host)
        return Position(step, self._passes, step - self._origin, self._ended)

    def state_dict(self) -> dict[str, Any]:
        """The position, the numbers that it is counted in, and what is owed."""
        geometry = asdict(Geometry.of(self.host))
        norm, rate = self._measured
        measured = [None if norm is None else float(norm), rate]
        owed = {"evaluates": self.evaluates, "measured": measured, "training": self.host.model.training}
        return {"position": asdict(self.current), "geometry": geometry, **owed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's position, once the run begins."""
        Position(**state["position"]), Geometry(**state["geometry"])
        self._measured = tuple(state["measured"])
        self._saved = state
        self.evaluates = bool(state["evaluates"])

    def begin(self, found: tuple[int, int], *, updates: int, passes: int, checkpoint: str | None) -> tuple[int, int]:
        """Set a run on its way; gives the pass that it starts in, and the micro-batches to leave out there.

        ``found`` is the host's own answer, from the number of ``updates`` a pass of which there are ``passes``.
        """
        host, now = self.host, Geometry.of(self.host)
        self._updates = updates
        if checkpoint is None:
            self._batch.begin(0, keep=False)
            self._begun = Position()
            return found
        self._checkpoint = checkpoint
        keep, saved = self._restart(found, now, checkpoint)
        self._finished = host.state.global_step >= host.state.max_steps
        self._batch.begin(saved.step, keep=keep)
        self._begun = saved
        over = saved.ended or self._over(saved)
        if host.args.ignore_data_skip:
            self._batch.begin(0, keep=False)
            self._begun = Position(0, saved.passes)
            return (passes if self._finished else saved.passes + over), 0
        drawn = saved.passes
        if self._finished or (over and not saved.ended):
            # More than there are: the host goes on at the end of the pass, which is still to come.
            skipped = updates * now.gradient_accumulation_steps
        elif saved.ended:
            drawn, skipped = saved.passes + 1, 0
            self._begun = Position(saved.step, drawn)
        else:
            skipped = saved.taken
        for _ in range(drawn):
            self._draw()
        return drawn, skipped

    def _restart(self, found: tuple[int, int], now: Geometry, checkpoint: str) -> tuple[bool, Position]:
        """Whether the generation batch of the checkpoint goes on, and the position."""
        if self._saved is None:  # a checkpoint of the host's own trainer: its reckoning holds
            passes, taken = found
            return False, start_of_batch(Position(0, passes, taken), now)
        saved, was = Position(**self._saved["position"]), Geometry(**self._saved["geometry"])
        keep = not self._check.changed and self._batch.is_held()
        start = position(saved, was, now, holds_batch=keep)
        if start != saved and not self._check.changed and self.host.accelerator.is_main_process:
            logger.warning("%s does not hold its generation batch, which is drawn anew.", Path(checkpoint).name)
        return keep, start

    def _over(self, place: Position) -> bool:
        """The pass has no further micro-batch, as far as its length is known."""
        return -(-place.taken // Geometry.of(self.host).gradient_accumulation_steps) >= self._updates

    def _draw(self) -> None:
        """Let the sampler draw the order of one pass, of which nothing is read."""
        if self.sampler is not None:
            next(iter(self.sampler), None)

    def measured(self, norm: Any, rate: float | None) -> tuple[Any, float | None]:
        """Norm of the gradient and learning rate of the last step; before the first of a resumed run the saved ones."""
        if rate is not None:
            self._measured = (norm, rate)
        return self._measured

    def restored(self) -> None:
        """The random state of the checkpoint was just loaded: do what is owed."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None and self.evaluates and evaluation_enabled(self.host):
            run_pending_evaluation(self.host, checkpoint)
        self.evaluates = False

    def evaluation(self, run: Callable[[], dict[str, float]], *, starts: bool) -> dict[str, float]:
        """An evaluation; ``starts``: the one before the first step, which a resumed run has behind it.

        One that is left before its end leaves no trace.
        """
        host = self.host
        if starts and self._checkpoint is not None:
            return {}
        self.evaluates = True
        devices = {parameter.device for parameter in host.model.parameters()}
        mode = partial(host.model.train, host.model.training)
        undo = together(random_state(devices), snapshot_logs(host), mode)
        try:
            found = run()
        except BaseException:
            undo()
            raise
        self.evaluates = False
        return found

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Count the passes."""
        step = micro_step(self.host)
        if self._begun is not None:
            self._passes, self._origin, self._ended = self._begun.passes, step - self._begun.taken, self._begun.ended
            self._begun = None
        else:
            self._passes, self._origin, self._ended = self._passes + 1, step, False

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Note whether an evaluation follows: a signal may put it off."""
        self.evaluates = control.should_evaluate

    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Note the end of a pass. A run that was saved at the end of its last step goes on here."""
        if self._checkpoint is not None:
            self._draw()
            if self._saved is not None:
                self.host.model.train(self._saved["training"])  # TRL's lists of metrics go by it
            load_random_state(self.host, self._checkpoint)
        if self._finished:
            control.should_training_stop = True
        if self._ended:
            control.should_log = control.should_evaluate = control.should_save = False
        self._ended = self._over(self.current) or not control.should_training_stop
        self.evaluates = control.should_evaluate

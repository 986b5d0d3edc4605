"""Checkpoints from their first file to their last; one that cannot be written costs itself, not the run."""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_plus.checkpoints import folder as checkpoints
from grpo_plus.checkpoints.disk import FailedWrite, failed_write
from grpo_plus.memory.snapshot import Undo, random_state
from grpo_plus.training.hooks import TrainerStage
from grpo_plus.training.resume import state
from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.logs import next_checkpoint_folder, push_checkpoint, save_checkpoint_now, save_full_model
from grpo_plus.trl.ranks import broadcast_from_main, gather_objects
from grpo_verifiers.redaction import get_logger, redact_text

logger = get_logger("grpo_plus.saving")

_WEIGHTS = ("*.safetensors", "*.bin")


class Saving:
    """Saves the checkpoints of a run.

    A write that fails on any process is told to all of them once all have written. What there is of the checkpoint is
    then removed, and training goes on. Errors of another kind are raised, and all under FSDP and ZeRO: there the other
    processes wait for pieces of the model. ``failed`` tells why the last checkpoint was not written; None if it was,
    or none was due yet.
    """

    def __init__(self, host: Host, hooks: Sequence[TrainerStage]) -> None:
        """Of this trainer, which need not be loaded yet, and its hooks."""
        self.failed: FailedWrite | None = None
        self._host, self._hooks = host, hooks
        self._in_a_row = 0
        self._problems: list[FailedWrite] | None = None  # a list while a checkpoint is being written
        self._args: Any = None
        self._folder = Path()
        self._push = False
        self._best: tuple[float | None, int | None] = (None, None)  # metric and step, as of the last one written
        self._noted: tuple[int, Sequence[TrainerStage], Undo] | None = (
            None  # the last whole step, its hooks, its random state
        )
        self._as_of: Sequence[TrainerStage] | None = None

    @property
    def args(self) -> Any:
        """The config as it is to be written down."""
        return self._host.args if self._problems is None else self._args

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Keep a failed write of this process until all can be told; outside of checkpoints it is raised at once."""
        try:
            yield
        except Exception as error:
            if self._problems is None or self._host.is_fsdp_enabled or self._host.is_deepspeed_enabled:
                raise
            problem = failed_write(error, self._folder)
            if problem is None:
                raise
            self._problems.append(problem)

    def postpones_push(self) -> bool:
        """Whether a push to the Hub has to wait: the checkpoint is not whole yet."""
        self._push = self._push or self._problems is not None
        return self._problems is not None

    def save(self, folder: Path, rest: Callable[[], None]) -> None:
        """Save a checkpoint: the state of the hooks, the ``rest`` as TRL does, and what says that it is whole.

        Every process takes part. In the end ``failed`` is the same on all of them.
        """
        at = self._host.state
        best = at.best_model_checkpoint
        self._problems, self._args, self._push = [], self._host.args, False
        self._folder = Path(self.args.output_dir)
        unrotated = copy.copy(self._host.args)
        unrotated.save_total_limit = None
        try:
            with temporary_attribute(self._host, "args", unrotated):
                problem = self._write(folder, rest)
        finally:
            self._problems = None
        if problem is None:
            self._best = at.best_metric, at.best_global_step
            self._written(folder)
        else:
            at.best_model_checkpoint = best
            if at.best_global_step == at.global_step and (best is None or self._best[1] is not None):
                at.best_metric, at.best_global_step = self._best  # the best that is not on the disk is none
            self._not_written(folder, problem)

    def note(self) -> None:
        """Remember what a checkpoint between two steps holds besides weights, for `keep`."""
        devices = {parameter.device for parameter in self._host.model.parameters()} | {self._host.accelerator.device}
        frozen = [state.Frozen(hook) for hook in self._hooks]
        self._noted = self._host.state.global_step, frozen, random_state(devices)

    def keep(self) -> Path:
        """Save a checkpoint of the last whole step, from within one that cannot be finished; gives its folder.

        Before the next optimizer step the weights are still those; the rest was noted. In an evaluation, which follows
        a step, all is as it was. Every process takes part.
        """
        folder = next_checkpoint_folder(self._host, None)
        whole = broadcast_from_main(lambda: checkpoints.last_checkpoint(folder.parent, hashes=False) == folder)
        if whole:
            return folder
        try:
            if self._noted is not None and self._noted[0] == self._host.state.global_step:
                _, self._as_of, restore = self._noted
                restore()
            save_checkpoint_now(self._host)
        finally:
            self._as_of = None
        return folder

    def save_model(self, folder: Path) -> FailedWrite | None:
        """Save the trained model into a folder; gives the reason where it could not be written.

        Every process takes part, and gets the same answer. What there is of a model that was not written is removed.
        """
        began = time.time() - 1
        self._problems, self._args, self._folder = [], self._host.args, folder
        try:
            with self.holding():
                save_full_model(self._host, folder)
            problem = self._agreed()
        finally:
            self._problems = None
        if problem is not None:
            for path in (path for pattern in _WEIGHTS for path in folder.glob(pattern)):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime >= began:
                        path.unlink()
        return problem

    def _write(self, folder: Path, rest: Callable[[], None]) -> FailedWrite | None:
        args = self._args
        with self.holding():
            if args.should_save and folder.is_dir():  # torn, or of a branch that was left
                checkpoints.remove(folder)
        if problem := self._agreed():  # before any process writes into the folder
            return problem
        with self.holding():
            state.save(self._as_of or self._hooks, folder, rank=args.process_index, write=args.should_save)
        with self.holding():
            rest()
        if problem := self._agreed():
            return problem
        with self.holding():
            if args.should_save:
                checkpoints.finish(folder, self._host.state.global_step)
        return self._agreed()

    def _agreed(self) -> FailedWrite | None:
        """The first problem of all processes; each has written what it had to when this returns."""
        mine = next(iter(self._problems or []), None)
        return next((problem for problem in gather_objects([mine]) if problem is not None), None)

    def _written(self, folder: Path) -> None:
        if self._in_a_row:
            logger.warning("%s is written, after %d that could not be.", folder.name, self._in_a_row)
        self.failed, self._in_a_row = None, 0
        if self._push:
            try:
                push_checkpoint(self._host, folder)
            except Exception as error:  # noqa: BLE001 - a network that is down concerns the Hub's copy only
                told = redact_text(f"{type(error).__name__}: {error}")
                logger.warning("%s was not pushed to the Hub, training goes on: %s", folder.name, told)
        if self._host.args.should_save:
            best, limit = self._host.state.best_model_checkpoint, self._host.args.save_total_limit
            for line in checkpoints.rotate(folder.parent, limit, best):
                logger.warning("%s", line)

    def _not_written(self, folder: Path, problem: FailedWrite) -> None:
        self.failed, self._in_a_row = problem, self._in_a_row + 1
        with contextlib.suppress(OSError):  # on every process: their disks may be different ones
            if folder.is_dir():  # a file in its place is somebody's
                checkpoints.remove(folder)
        if not self._host.is_world_process_zero():
            return
        last = checkpoints.last_checkpoint(folder.parent, hashes=False)
        whole = f"The last whole checkpoint is {last.name}." if last else "There is no whole checkpoint yet."
        then = f"{problem.remedy}: training goes on, and the next save tries again."
        logger.warning("%s was not written: %s. %s %s", folder.name, problem, whole, then)

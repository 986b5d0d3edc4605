"""Saves checkpoints. If one cannot be written, training continues and retries at the next save."""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_plus.checkpoints import folder as checkpoints
from grpo_plus.checkpoints.disk import FailedWrite, failed_write
from grpo_plus.training.hooks import TrainerStage
from grpo_plus.training.resume import state
from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.logs import push_checkpoint, save_full_model
from grpo_plus.trl.ranks import gather_objects
from grpo_verifiers.redaction import get_logger, redact_text

logger = get_logger("grpo_plus.saving")

_WEIGHTS = ("*.safetensors", "*.bin")


class Saving:
    """Saves the checkpoints of a run.

    If a write fails on any process, all remove the incomplete checkpoint once all have written, and training continues.
    Errors of another kind are raised, and all errors under FSDP and ZeRO, where the other processes wait for shards.
    ``failed`` is the reason why the last checkpoint was not written, or None.
    """

    def __init__(self, host: Host, stages: Sequence[TrainerStage]) -> None:
        self.failed: FailedWrite | None = None
        self._host, self._stages = host, stages
        self._failures = 0  # in a row
        self._problems: list[FailedWrite] | None = None  # a list while a checkpoint is being written
        self._args: Any = None
        self._folder = Path()
        self._push = False
        self._best: tuple[float | None, int | None] = (None, None)  # metric and step of the last checkpoint

    @property
    def args(self) -> Any:
        """The config to write."""
        return self._host.args if self._problems is None else self._args

    @contextlib.contextmanager
    def collect_write_errors(self) -> Iterator[None]:
        """Store a failed write until all processes can compare theirs; outside of checkpoints raise it at once."""
        try:
            yield
        except Exception as error:
            if self._problems is None or self._host.is_fsdp_enabled or self._host.is_deepspeed_enabled:
                raise
            problem = failed_write(error, self._folder)
            if problem is None:
                raise
            self._problems.append(problem)

    def defer_push(self) -> bool:
        """Return True, and push later, while the checkpoint is not complete."""
        self._push = self._push or self._problems is not None
        return self._problems is not None

    def save(self, folder: Path, rest: Callable[[], None]) -> None:
        """Save a checkpoint: the state of the stages, TRL's files (``rest``), and the manifest.

        Every process takes part, and all end with the same ``failed``.
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
                at.best_metric, at.best_global_step = self._best  # the best must be on the disk
            self._not_written(folder, problem)

    def save_model(self, folder: Path) -> FailedWrite | None:
        """Save the trained model into a folder, or remove its files and return the reason of the failure.

        Every process takes part, and gets the same result.
        """
        began = time.time() - 1
        self._problems, self._args, self._folder = [], self._host.args, folder
        try:
            with self.collect_write_errors():
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
        with self.collect_write_errors():
            if args.should_save and folder.is_dir():  # torn, or of a branch that was left
                checkpoints.remove(folder)
        if problem := self._agreed():  # before any process writes into the folder
            return problem
        with self.collect_write_errors():
            state.save(self._stages, folder, rank=args.process_index, write=args.should_save)
        with self.collect_write_errors():
            rest()
        if problem := self._agreed():
            return problem
        with self.collect_write_errors():
            if args.should_save:
                checkpoints.finish(folder, self._host.state.global_step)
        return self._agreed()

    def _agreed(self) -> FailedWrite | None:
        """Wait until all processes have written, and return the first problem of any."""
        mine = next(iter(self._problems or []), None)
        return next((problem for problem in gather_objects([mine]) if problem is not None), None)

    def _written(self, folder: Path) -> None:
        if self._failures:
            logger.warning("%s is written, after %d that could not be.", folder.name, self._failures)
        self.failed, self._failures = None, 0
        if self._push:
            try:
                push_checkpoint(self._host, folder)
            except Exception as error:  # noqa: BLE001 - a network that is down concerns the Hub's copy only
                text = redact_text(f"{type(error).__name__}: {error}")
                logger.warning("%s was not pushed to the Hub, training continues: %s", folder.name, text)
        if self._host.args.should_save:
            best, limit = self._host.state.best_model_checkpoint, self._host.args.save_total_limit
            for line in checkpoints.rotate(folder.parent, limit, best):
                logger.warning("%s", line)

    def _not_written(self, folder: Path, problem: FailedWrite) -> None:
        self.failed, self._failures = problem, self._failures + 1
        with contextlib.suppress(OSError):  # on every process: their disks may be different ones
            if folder.is_dir():  # a file in its place is not ours to remove
                checkpoints.remove(folder)
        if not self._host.is_world_process_zero():
            return
        last = checkpoints.last_checkpoint(folder.parent, hashes=False)
        whole = f"The last whole checkpoint is {last.name}." if last else "There is no whole checkpoint yet."
        then = f"{problem.remedy}: training continues, and the next save tries again."
        logger.warning("%s was not written: %s. %s %s", folder.name, problem, whole, then)

"""Output folder of a run: its lock, its earlier contents, and the checkpoint to resume from."""

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from grpo_plus.checkpoints.folder import (
    NEWEST,
    CheckpointError,
    Choice,
    by_path,
    checkpoints,
    choose,
    empty,
    is_intact,
    is_model_of,
    newest,
    occupied,
    read_json,
    weights_only,
)
from grpo_plus.cli import UserError
from grpo_verifiers.files import open_own, read_text

LOCK = "_grpo_plus.lock"
"""Uploads to the hub skip files with this prefix."""
AUTO = "auto"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of a file system without locks."""


def start_of(args: Any, base: Path) -> tuple[Choice, list[str], bool]:
    """Return the checkpoint of a run, if any, messages about it, and True if nothing is left to train.

    ``base`` is the config's folder.
    """
    folder = Path(args.output_dir)
    choice = resume_point(args.resume_from_checkpoint, folder, base)
    checkpoint, message = choice.checkpoint, ""
    if checkpoint is None:
        message = "The run starts from the beginning." if choice.passed_over else ""
    elif left_to_train(checkpoint, args):
        message = resume_message(checkpoint)
    elif checkpoint.parent.resolve() == folder.resolve() and not is_model_of(checkpoint):
        message = f"{checkpoint} is at the end of this run, but the model in {folder} is not: it is saved now."
    else:
        done = f"{checkpoint} is at the end of this run already: nothing is left to train"
        if str(args.resume_from_checkpoint).strip().lower() != AUTO:
            raise UserError(f"resume_from_checkpoint: {done}. Raise max_steps or num_train_epochs to train further.")
        return choice, [*choice.passed_over, f"{done}."], True
    return choice, [*choice.passed_over, *filter(None, [message])], False


def resume_point(value: Any, output_dir: Path, base: Path) -> Choice:
    """Return the checkpoint named by ``resume_from_checkpoint``; none for a run from the start.

    ``value``: a path, first from ``base``, the config's folder; true or ``last``: the newest; ``auto``: that or none.
    """
    word = str(value).strip().lower()
    if value is None or word in ("", "false", "no", "none", "null"):
        return Choice(None, ())
    if word == AUTO:
        return choose(output_dir)
    try:
        if word in ("true", "yes", NEWEST):
            return newest(value, output_dir)
        path = Path(str(value)).expanduser()
        places = [place for place in dict.fromkeys((base / path, Path.cwd() / path)) if place.is_dir()]
        for place in places:
            if checkpoints(place):
                return newest(value, place)
            if is_intact(place):
                return Choice(place, ())
        return by_path(next(iter(places), path), output_dir)
    except CheckpointError as error:
        raise UserError(str(error)) from error


def left_to_train(resume: Path, args: Any) -> bool:
    """Return True if a checkpoint lies before the last step of the config; after it, the trainer would do one more."""
    state = json.loads(read_text(resume / "trainer_state.json"))
    if args.max_steps > 0:
        return bool(state["global_step"] < args.max_steps)
    return bool((state.get("epoch") or 0.0) < args.num_train_epochs)


def resume_message(resume: Path) -> str:
    """Return the message about the checkpoint that a run resumes from."""
    if weights_only(resume):
        return f"Resuming from {resume}, which holds weights only: optimizer, schedule and random state are new."
    return f"Resuming from {resume}."


def prepare(folder: Path, *, value: Any, resumes: bool, overwrite: bool, command: str, elsewhere: str) -> list[Path]:
    """Refuse a folder with another run's checkpoints; return those to remove before training begins.

    A model without checkpoints is replaced. With ``auto`` as the ``value`` of ``resume_from_checkpoint``, damaged
    checkpoints stay. ``elsewhere`` is the ``command`` without its output folder.
    """
    old = [] if resumes else checkpoints(folder)
    if not old or overwrite:
        return old
    if str(value).strip().lower() == AUTO:
        return []
    resume, anew = f"{command} --resume_from_checkpoint last", f"{command} --overwrite_output_dir"
    raise UserError(occupied(folder, old, resume=resume, elsewhere=f"{elsewhere} --output_dir {folder}-2", anew=anew))


def clear(folder: Path, old: list[Path], *, resumes: bool) -> list[str]:
    """Remove checkpoints and files left by killed runs; return the messages about it."""
    try:
        removed = empty(folder, old)
    except CheckpointError as error:
        raise UserError(str(error)) from error
    models = (*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin"))
    replaced = [f"{folder} holds a model already, which this run will replace."] if models and not resumes else []
    return removed or replaced


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a folder on the main process until the block or the process ends.

    Raises:
        UserError: another run has locked it, or nothing can be written there.
    """
    if int(os.environ.get("RANK", "0")) != 0:  # other ranks write nothing there
        yield
        return
    path = folder / LOCK
    lock = FileLock(path, timeout=0.2, thread_local=False)  # some patience: its last owner may be removing it
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except OSError as error:  # including Timeout
            if error.errno not in _NO_LOCKS:
                raise
        file = open_own(path, "w", encoding="utf-8")
    except Timeout:
        holder = read_json(path)
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}, since {holder.get('since', '?')}"
        raise UserError(
            f"output_dir {folder} is in use: another run writes there ({who}). Wait for it, end it, or set another "
            "output_dir."
        ) from None
    except OSError as error:
        lock.release()
        raise UserError(f"output_dir {folder}: nothing can be written there ({error}).") from error
    with contextlib.suppress(OSError):  # a full disk
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
        file.flush()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()
        with contextlib.suppress(OSError):
            file.close()

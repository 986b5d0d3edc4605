"""Check that a run's checkpoints and model fit on the disk, and explain a failed write."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.training.checkpoints import checkpoints, is_whole, last_checkpoint

if TYPE_CHECKING:
    from grpo_plus._trl import Host

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.EIO)
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""The error number in messages of Rust libraries, which write weights and tokenizers."""
_TORCH = ("inline_container", "PytorchStreamWriter", "basic_ios::clear", "Parent directory")
"""Words in torch's write errors, which have no number."""
_STATES = {"sgd": 0, "adagrad": 1, "rmsprop": 1, "lion": 1}
"""Values that an optimizer keeps for each weight, if not two."""


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def model_bytes(model: Any) -> int:
    """Size of the saved model: its adapters if it has any, otherwise all weights."""
    adapters = getattr(model, "peft_config", None) is not None
    weights = [w for name, w in model.named_parameters() if not adapters or "lora_" in name or w.requires_grad]
    return sum({id(w): w.numel() * w.element_size() for w in weights}.values())


def checkpoint_bytes(model: Any, args: Any) -> int:
    """Size of a checkpoint: the model, and the optimizer's state unless ``save_only_model`` is set."""
    trained = sum(w.numel() * w.element_size() for w in model.parameters() if w.requires_grad)
    name = str(getattr(args.optim, "value", args.optim))
    values = next((count for word, count in _STATES.items() if word in name), 2)
    small = 4 if "8bit" in name else 1
    return model_bytes(model) + (0 if args.save_only_model else values * trained // small)


def check_space(trainer: "Host") -> list[str]:
    """Refuse (`UserError`) a run whose first checkpoint or final model will not fit; returns warnings."""
    folder, args = Path(trainer.args.output_dir), trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    whole, each = model_bytes(model), checkpoint_bytes(model, args)
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    free = free_bytes(folder)
    least = whole + (each if strategy != "no" else 0)
    what = f"the model takes {_size(whole)}" + (f", a checkpoint {_size(each)}" if strategy != "no" else "")
    if least > free:
        raise UserError(
            f"no space left for what this run will save: {folder} has {_size(free)} free, but {what}. Free some, set "
            "another output_dir, or save less (save_strategy: no, save_only_model: true)."
        )
    count = _planned(trainer, strategy)
    if count is None or whole + count * each <= free:
        return []
    told = f"{folder} has {_size(free)} free; {what}, and {count} of them are planned"
    return [f"{told}: set save_total_limit to keep fewer, or the disk will be full before the end."]


def _planned(trainer: "Host", strategy: str) -> int | None:
    """The largest number of checkpoints side by side, if it is known."""
    args = trainer.args
    if strategy != "steps" or args.max_steps < 1:
        return None
    every = args.save_steps if args.save_steps >= 1 else max(1, int(args.save_steps * args.max_steps))
    count = int(args.max_steps // every)
    return min(count, args.save_total_limit + 1) if args.save_total_limit else count


def unsaved(error: BaseException, folder: Path) -> str | None:
    """The reason why a write into a run's output folder failed; None for an error of another kind."""
    for one in _chain(error):
        number = _number(one, folder)
        if number in _FULL:
            return f"no space left on the disk of output_dir {folder} ({_size(free_bytes(folder))} free)"
        if number in _REFUSED:
            at = getattr(one, "filename", None) or folder
            return f"output_dir {folder} cannot be written ({os.strerror(number)}: {at})"
    return None


def _number(error: BaseException, folder: Path) -> int | None:
    """The operating system's number of a failed write, from any of the writing libraries."""
    if isinstance(error, OSError) and error.errno is not None:
        inside = error.filename is not None and Path(str(error.filename)).absolute().is_relative_to(folder.absolute())
        return error.errno if inside or (error.filename is None and error.errno in _FULL) else None
    if found := _NUMBER.search(str(error)):
        return int(found[1])
    for number in (*_FULL, *_REFUSED):
        if re.search(rf"(failed with|strerror:|^) ?{re.escape(os.strerror(number))}", str(error)):
            return number
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _TORCH):
        return _probed(folder)
    return None


def _probed(folder: Path) -> int:
    """The reason of a failed write from a trial; a full disk if a small file can still be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.errno or errno.EIO
    return errno.ENOSPC


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    while error is not None and seen < 10:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1


def lost(why: str, folder: Path, command: str, *, step: int, last_step: int) -> UserError:
    """The error for a failed save; a half-written checkpoint is removed first.

    ``why`` is the reason from `unsaved`. ``command`` resumes the run.
    """
    saving = folder / f"checkpoint-{step}"
    removed = ""
    if saving in checkpoints(folder) and not is_whole(saving):
        shutil.rmtree(saving, ignore_errors=True)
        removed = "" if saving.exists() else f" The half-written {saving.name} was removed."
    return UserError(
        f"{why}: what was being saved is not complete.{removed} {_way_on(folder, command, step, last_step)}"
    )


def _way_on(folder: Path, command: str, step: int, last_step: int) -> str:
    last = last_checkpoint(folder)
    trained = "Training was over, but the trained model is not saved" if step >= last_step else ""
    if last is None:
        lost = f"{trained}: it is lost. " if trained else ""
        way = "Once the folder can be written, start again; save_strategy: steps keeps checkpoints on the way."
        return f"{lost}There is no whole checkpoint to resume from. {way}"
    if trained and last.name == f"checkpoint-{step}":
        return f"{trained} in {folder} itself: {last} holds it, whole. Copy it from there."
    lost = f"{trained}. " if trained else ""
    return f"{lost}The last whole checkpoint is {last.name}. Once there is space, go on with:\n  {command}"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError

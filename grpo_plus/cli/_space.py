"""Whether what a run will save fits on the disk, and what to say when it did not."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_plus.checkpoints import checkpoints, is_whole, last_checkpoint
from grpo_plus.cli import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = ("No space left on device", "os error 28)", "Disk quota exceeded", "os error 122)")
"""As the library that writes weights, which raises an error of its own, tells it."""
_STATES = {"sgd": 0, "adagrad": 1, "rmsprop": 1, "lion": 1}
"""Values that an optimizer keeps for each weight, where they are not two."""


def free_bytes(folder: Path) -> int:
    """Free space of the disk that a folder, which may not exist yet, will be on."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def model_bytes(model: Any) -> int:
    """Size of the saved model: its adapters where it has any, otherwise all weights."""
    adapters = getattr(model, "peft_config", None) is not None
    weights = [w for name, w in model.named_parameters() if not adapters or "lora_" in name or w.requires_grad]
    return sum({id(w): w.numel() * w.element_size() for w in weights}.values())


def checkpoint_bytes(model: Any, args: Any) -> int:
    """Size of a checkpoint: the model, and the optimizer's state unless it is left out."""
    trained = sum(w.numel() * w.element_size() for w in model.parameters() if w.requires_grad)
    name = str(getattr(args.optim, "value", args.optim))
    values = next((count for word, count in _STATES.items() if word in name), 2)
    small = 4 if "8bit" in name else 1
    return model_bytes(model) + (0 if args.save_only_model else values * trained // small)


def check_space(trainer: Any) -> list[str]:
    """Refuse a run whose first checkpoint or final model will not fit; returns what else is to be told.

    Raises:
        UserError: names the folder, what is needed and what is free.
    """
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


def _planned(trainer: Any, strategy: str) -> int | None:
    """How many checkpoints lie there at most, if that can be told."""
    args = trainer.args
    if strategy != "steps" or args.max_steps < 1:
        return None
    every = args.save_steps if args.save_steps >= 1 else max(1, int(args.save_steps * args.max_steps))
    count = int(args.max_steps // every)
    return min(count, args.save_total_limit + 1) if args.save_total_limit else count


def is_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, is a disk without space left."""
    return any(
        (isinstance(one, OSError) and one.errno in _FULL)
        or any(words in str(one) for words in _WORDS)
        or ("PytorchStreamWriter" in str(one) and "fail" in str(one))
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    while error is not None and seen < 10:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1


def full(folder: Path, command: str, *, saving: Path | None = None) -> UserError:
    """What to say when saving failed for want of space; a half-written checkpoint is removed first.

    Args:
        folder: the output folder.
        command: that resumes the run.
        saving: the checkpoint that was being written.
    """
    removed = ""
    if saving is not None and saving in checkpoints(folder) and not is_whole(saving):
        shutil.rmtree(saving, ignore_errors=True)
        removed = f" The half-written {saving.name} was removed."
    last = last_checkpoint(folder)
    if last is None:
        after = "There is no whole checkpoint to resume from."
    else:
        after = f"The last whole checkpoint is {last.name}. Once there is space, go on with:\n  {command}"
    return UserError(
        f"no space left on the disk of output_dir {folder} ({_size(free_bytes(folder))} free): what was being saved is "
        f"not complete.{removed} {after}"
    )


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError

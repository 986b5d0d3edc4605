"""Check that a run's checkpoints and model fit on the disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.checkpoints.disk import free_bytes, size_text
from grpo_plus.cli import UserError

if TYPE_CHECKING:
    from grpo_plus._trl import Host

_STATES = {"sgd": 0, "adagrad": 1, "rmsprop": 1, "lion": 1}
"""Values that an optimizer keeps for each weight, if not two."""


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
    what = f"the model takes {size_text(whole)}" + (f", a checkpoint {size_text(each)}" if strategy != "no" else "")
    if least > free:
        raise UserError(
            f"no space left for what this run will save: {folder} has {size_text(free)} free, but {what}. Free some, "
            "set another output_dir, or save less (save_strategy: no, save_only_model: true)."
        )
    count = _planned(trainer, strategy)
    if count is None or whole + count * each <= free:
        return []
    told = f"{folder} has {size_text(free)} free; {what}, and {count} of them are planned"
    return [f"{told}: set save_total_limit to keep fewer, or the disk will be full before the end."]


def _planned(trainer: "Host", strategy: str) -> int | None:
    """The largest number of checkpoints side by side, if it is known."""
    args = trainer.args
    if strategy != "steps" or args.max_steps < 1:
        return None
    every = args.save_steps if args.save_steps >= 1 else max(1, int(args.save_steps * args.max_steps))
    count = int(args.max_steps // every)
    return min(count, args.save_total_limit + 1) if args.save_total_limit else count

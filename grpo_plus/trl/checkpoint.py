"""Checkpoints of TRL's trainer: save, push, restore random state, and evaluations due at a resumed step."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grpo_plus.trl.host import Host, temporary_attribute


def next_checkpoint_folder(host: Host, trial: Any) -> Path:
    """Folder of a checkpoint at the current step."""
    return Path(host._get_output_dir(trial)) / f"checkpoint-{host.state.global_step}"


def save_checkpoint_now(host: Host) -> None:
    """Save a checkpoint of the current step outside the training loop."""
    host._save_checkpoint(host.model, trial=None)
    host.control = host.callback_handler.on_save(host.args, host.state, host.control)


def save_full_model(host: Host, folder: Path) -> None:
    """Save the full model without a push to the Hub; TRL saves none where FSDP checkpoints are sharded."""
    with ExitStack() as around:
        if host.is_fsdp_enabled and (plugin := host.accelerator.state.fsdp_plugin) is not None:
            from torch.distributed.fsdp import StateDictType

            around.enter_context(temporary_attribute(plugin, "state_dict_type", StateDictType.FULL_STATE_DICT))
        host.save_model(str(folder), _internal_call=True)


def push_checkpoint(host: Host, folder: Path) -> None:
    """Push a checkpoint to the Hub as ``hub_strategy`` demands."""
    host._push_from_checkpoint(str(folder))


def load_random_state(host: Host, checkpoint: str) -> None:
    """Load the state of all random generators from a checkpoint."""
    host._load_rng_state(checkpoint)


def evaluation_enabled(host: Host) -> bool:
    """True if the run evaluates."""
    return bool(getattr(host.args.eval_strategy, "value", host.args.eval_strategy) != "no")


def run_pending_evaluation(host: Host, checkpoint: str) -> None:
    """Evaluate at the current step, after a resume from a checkpoint saved before its evaluation."""
    step = host.state.global_step
    if host._determine_best_metric(host._evaluate(None, None, skip_scheduler=step == 0), None):
        host.state.best_model_checkpoint = checkpoint

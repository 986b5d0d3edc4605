"""TRL's metrics and table of completions (add, capture, save and restore), and its checkpoints."""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.trl.host import Host, temporary_attribute

if TYPE_CHECKING:
    import torch


RUN_TOTAL = "num_tokens"
"""TRL's metric that counts over the run: a new value replaces the last one instead of being averaged."""

CompletionTable = dict[str, Any]
"""TRL's table of completions: columns by name, and mappings of further columns."""

_SAVED_COLUMNS = ("prompt", "completion", "rewards", "advantages", "extra")
"""Columns of the table without images."""


def metric_lists(host: Host) -> MutableMapping[str, list[float]]:
    """TRL's metric lists of the current mode; TRL logs the mean of each."""
    return host._metrics["train" if host.model.training else "eval"]


def log_metrics(host: Host, values: Mapping[str, float]) -> None:
    """Add metrics to the next log of the current mode."""
    lists = metric_lists(host)
    for name, value in values.items():
        lists[name].append(value)


def log_metric_lists(host: Host, values: Mapping[str, Sequence[float]]) -> None:
    """Add captured lists of metrics to the next log of the current mode."""
    lists = metric_lists(host)
    for name, added in values.items():
        lists[name] = list(added) if name == RUN_TOTAL else [*lists[name], *added]


def log_training_metrics(host: Host, values: Mapping[str, float]) -> None:
    """Add metrics to the next log of training."""
    for name, value in values.items():
        host._metrics["train"][name].append(value)


def metric_logger(host: Host) -> Callable[[str, float], None]:
    """The ``log_metric`` of TRL's reward functions: values of this rank, averaged over all ranks."""
    return host._log_metric


def replace_logged_advantages(host: Host, advantages_N: "torch.Tensor") -> None:
    """Replace TRL's own advantages in the table of completions by those used for training."""
    logged = host._logs["advantages"]
    fresh = advantages_N.tolist()
    for _ in range(min(len(fresh), len(logged))):
        logged.pop()
    logged.extend(fresh)


def log_extra_column(host: Host, column: str, values: Iterable[Any]) -> None:
    """Add a column to TRL's table of completions: one value per completion of all ranks, in table order."""
    host._logs["extra"][column].extend(values)


def extend_table(host: Host, rows: CompletionTable) -> None:
    """Append rows to TRL's table of completions."""
    for name, values in rows.items():
        column = host._logs[name]
        if isinstance(column, dict):
            for key, further in values.items():
                column[key].extend(further)
        else:
            column.extend(values)


def map_column(change: Callable[[Any], Any], column: Any) -> Any:
    """Apply ``change`` to a column, or to each one of a mapping of columns."""
    return {name: change(one) for name, one in column.items()} if isinstance(column, dict) else change(column)


@contextmanager
def capture_logs(host: Host) -> Iterator[tuple[CompletionTable, dict[str, list[float]]]]:
    """Capture TRL's logs of training inside the block; yields the table of completions and the metric lists."""
    table: CompletionTable = {
        name: defaultdict(list) if isinstance(one, dict) else [] for name, one in host._logs.items()
    }
    lists: dict[str, list[float]] = defaultdict(list)
    logs, metrics = host._logs, host._metrics["train"]
    host._logs, host._metrics["train"] = table, lists
    try:
        yield table, lists
    finally:
        host._logs, host._metrics["train"] = logs, metrics


def snapshot_logs(host: Host) -> Callable[[], None]:
    """Copy TRL's table of completions and its log history; returns a function that restores them."""
    table = {name: map_column(list, column) for name, column in host._logs.items()}
    length = len(host.state.log_history)

    def restore() -> None:
        _refill(host, table)
        del host.state.log_history[length:]

    return restore


def pending_logs(host: Host) -> tuple[dict[str, Any], "dict[str, torch.Tensor]"]:
    """Values since the last log of training: JSON values, and tensors by name."""
    import torch

    logs, lists = host._logs, host._metrics["train"]
    state: dict[str, Any] = {"time": host._current_train_step_time} if host._current_train_step_time else {}
    tensors = {f"metrics/{name}": torch.tensor(values, dtype=torch.float64) for name, values in lists.items() if values}
    if host._globalstep_last_logged != host.state.global_step:
        state["logged"] = host._globalstep_last_logged
        tensors["loss"] = host._tr_loss
    if host.args.log_completions and host.accelerator.is_main_process and len(logs["prompt"]):
        state["table"] = {name: map_column(_json_values, logs[name]) for name in _SAVED_COLUMNS}
    return state, tensors


def restore_pending_logs(host: Host, state: Mapping[str, Any], tensors: "Mapping[str, torch.Tensor]") -> None:
    """Restore what `pending_logs` returned."""
    lists = host._metrics["train"]
    lists.clear()
    for name, values in tensors.items():
        if name.startswith("metrics/"):
            lists[name.removeprefix("metrics/")].extend(values.tolist())
    host._current_train_step_time = float(state.get("time", 0.0))
    if "logged" in state:
        host._globalstep_last_logged = int(state["logged"])
        host._tr_loss += tensors["loss"].to(host._tr_loss.device)
        host._total_loss_scalar -= float(host._tr_loss)  # the mean at the end covers only the steps of this call
    _refill(host, state.get("table", {}))


@contextmanager
def escape_printed_table(escape: Callable[[Any], Any]) -> Iterator[None]:
    """Pass all texts of TRL's printed table of completions through ``escape`` inside the block."""
    from trl.trainer import grpo_trainer

    original = grpo_trainer.print_prompt_completions_sample

    def escaped(prompts: Iterable[Any], completions: Iterable[Any], *rest: Any, **keywords: Any) -> None:
        if keywords.get("extra"):
            keywords["extra"] = {escape(name): escape(list(values)) for name, values in keywords["extra"].items()}
        original(escape(list(prompts)), escape(list(completions)), *rest, **keywords)

    with temporary_attribute(grpo_trainer, "print_prompt_completions_sample", escaped):
        yield


_FIRST = [True]
"""Empty after TRL's first warning on rows without a reward; it has one at every step, and verifier_idle reports it."""
logging.getLogger("trl.trainer.grpo_trainer").addFilter(
    lambda record: "All reward functions returned None" not in str(record.msg) or bool(_FIRST and _FIRST.pop())
)


def _refill(host: Host, table: CompletionTable) -> None:
    for name in table:
        host._logs[name].clear()
    extend_table(host, table)


def _json_values(column: Any) -> Any:
    text = json.dumps(list(column), default=lambda value: getattr(value, "tolist", lambda: None)(), skipkeys=True)
    return json.loads(text)


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

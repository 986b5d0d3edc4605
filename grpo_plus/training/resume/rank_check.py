"""Compares the config, data and versions of a run's processes, before they wait for each other in vain."""

import copy
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grpo_plus.checkpoints.folder import problem
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.resume.run_fingerprint import differences, parts_of, plain
from grpo_plus.trl.ranks import gather_objects
from grpo_verifiers.errors import ConfigError, Problem
from grpo_verifiers.redaction import redact

PACKAGES = ("grpo-plus", "torch", "trl", "transformers", "accelerate", "peft", "datasets")
MAY_DIFFER = frozenset(
    [
        *("output_dir", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("local_rank", "resume_from_checkpoint", "log_level", "log_level_replica", "disable_tqdm", "report_to"),
        *("hub_token", "use_cpu", "dataloader_pin_memory", "dataloader_num_workers", "dataloader_prefetch_factor"),
        *("dataloader_persistent_workers", "dataloader_multiprocessing_context", "torch_empty_cache_steps"),
        *("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "deepspeed_plugin", "logging_dir"),
        *("vllm_gpu_memory_utilization", "log_completions", "num_completions_to_print"),
    ]
)
"""Fields of the config that may differ between processes."""
MACHINE_KEYWORDS = frozenset(["device_map", "cache_dir", "max_memory", "offload_folder", "local_files_only", "token"])
"""The same of model_init_kwargs; guides to quantised models show a device_map for each rank."""
_MOST = 10
_WIDEST = 80


class RankCheck(TrainerStage):
    """Compares the configs and versions of the processes before anything loads."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def problems(self, setup: Setup) -> list[Problem]:
        """Processes that do not know of each other; machines where transformers would write no weights."""
        if (launched := _launcher_count("WORLD_SIZE")) > setup.args.world_size:
            text = (
                f"{launched} processes were started for one run (WORLD_SIZE), and accelerate uses "
                f"{setup.args.world_size}, so that each would train alone, into the same files: set use_cpu: true on "
                "CPUs, or start a single process."
            )
        elif machines() > 1 and setup.args.save_on_each_node:
            text = (
                "save_on_each_node: true, but transformers writes the weights on machine 0 only, so that the "
                "checkpoints of all other machines could not be resumed: leave it out, and use an output_dir that all "
                "machines share, or copy a checkpoint before resuming."
            )
        else:
            return []
        return [text]

    def before_loading(self, setup: Setup) -> None:
        if setup.args.world_size == 1:
            return
        require_equal_on_ranks(_start_settings(setup.args, self._recipe))


def require_equal_on_ranks(mine: Mapping[str, Any]) -> None:
    """Raise a ConfigError with the differences between processes, if there are any; every process must call it."""
    if problem := disagreement(gather_objects([(_name(), mine)])):
        raise ConfigError([problem])


def disagreement(settings: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Describe the differences between the first process and another; empty without any.

    >>> disagreement([("rank 0", {"beta": 0.0}), ("rank 1", {"beta": 0.1})]).splitlines()[-1]
    '  beta: 0.0 on rank 0, 0.1 on rank 1'
    """
    (first, expected), *rest = settings
    rows: dict[str, str] = {}
    for other, actual in rest:
        for name, one, another in differences(expected, actual):
            rows.setdefault(name, f"  {name}: {_shown(one)} on {first}, {_shown(another)} on {other}")
    if not rows:
        return ""
    lines = [*list(rows.values())[:_MOST], *([f"  and {len(rows) - _MOST} more"] if len(rows) > _MOST else [])]
    title = "the processes of this run were not started alike. Give every machine the same config, data and versions:"
    return "\n".join([title, *lines])


def machines() -> int:
    """Return the number of machines of the run; they may have different numbers of ranks."""
    if "GROUP_WORLD_SIZE" in os.environ:
        return _launcher_count("GROUP_WORLD_SIZE")
    return (
        _launcher_count("WORLD_SIZE") // _launcher_count("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else 1
    )


def _launcher_count(name: str) -> int:
    return int(os.environ.get(name) or "1")


def _start_settings(args: Any, recipe: Recipe) -> dict[str, Any]:
    twin = copy.copy(args)  # to_dict writes into model_init_kwargs, which the model is still to be loaded with
    kwargs = {name: value for name, value in (args.model_init_kwargs or {}).items() if name not in MACHINE_KEYWORDS}
    object.__setattr__(twin, "model_init_kwargs", kwargs)
    settings = {name: value for name, value in twin.to_dict().items() if name not in MAY_DIFFER}
    return {**plain(redact(settings)), "parts": parts_of(recipe), "version": dict(_versions())}


def _versions() -> Iterable[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "none"


def require_on_all_machines(checkpoint: Path) -> None:
    """Raise a ConfigError on all processes if one of them lacks the checkpoint of the main process."""
    if machines() == 1:
        return
    mine = (problem(checkpoint, hashes=False) or "") if checkpoint.is_dir() else "there is no such folder"
    lacking = [f"  {name}: {reason}" for name, reason in gather_objects([(_name(), mine)]) if reason]
    if lacking:
        text = f"resume_from_checkpoint: {checkpoint} is not whole on every machine:"
        remedy = (
            "Copy the checkpoint of machine 0 to the same path there, or use an output_dir that all machines share."
        )
        raise ConfigError(["\n".join([text, *lacking[:_MOST], remedy])])


def _name() -> str:
    return f"rank {os.environ.get('RANK', '0')} ({socket.gethostname()})"


def _shown(value: Any) -> str:
    text = "unset" if value is None else repr(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"

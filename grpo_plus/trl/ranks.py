"""Ranks and wrapped models: gather, broadcast, FSDP2, ZeRO, and the model inside accelerate's wrappers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from grpo_plus.trl.host import Host, Loop

Result = TypeVar("Result")


def gather_objects(rows: list[Any]) -> list[Any]:
    """Rows of all ranks, in rank order."""
    from accelerate.utils import gather_object

    gathered: list[Any] = gather_object(rows)
    return gathered


def broadcast_from_main(compute: Callable[[], Result]) -> Result:
    """Call ``compute`` on the main process and return its result on all ranks; an error is raised on all ranks."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    processes = PartialState()
    if processes.num_processes == 1:
        return compute()
    outcome: list[Any] = [None, None]  # result, error
    if processes.is_main_process:
        try:
            outcome[0] = compute()
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            outcome[1] = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    result: Result = outcome[0]
    return result


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore accelerate's state of this process after the block; each new training config overwrites it."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    saved = [(one._shared_state, dict(one._shared_state)) for one in (PartialState, AcceleratorState, GradientState)]
    try:
        yield
    finally:
        for state, values in saved:
            state.clear()
            state.update(values)


def unwrapped_model(host: Loop) -> Any:
    """The model without accelerate's wrappers, adapters included."""
    return host.accelerator.unwrap_model(host.model)


def plain_model(host: Host, model: Any) -> Any:
    """The transformers model without the wrappers of accelerate, torch.compile and PEFT."""
    model = host.accelerator.unwrap_model(model)
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def adapter_configs(host: Host) -> dict[str, Any]:
    """Configs of the model's PEFT adapters by name."""
    return getattr(unwrapped_model(host), "peft_config", None) or {}


def is_fsdp2(host: Host) -> bool:
    """True under FSDP2: weights are sharded, and each pass gathers them from all ranks."""
    return bool(host.is_fsdp_enabled and getattr(host.accelerator, "is_fsdp2", False))


def zero_stage(host: Host) -> int | None:
    """The stage of DeepSpeed ZeRO; None without DeepSpeed."""
    plugin = getattr(host.accelerator.state, "deepspeed_plugin", None) if host.is_deepspeed_enabled else None
    return None if plugin is None else int(plugin.zero_stage)


@contextmanager
def without_zero3_hooks(host: Host) -> Iterator[None]:
    """Disable ZeRO-3's gathering of weights inside the block, where the weights are gathered already."""
    from trl.models.utils import add_hooks, remove_hooks

    remove_hooks(host.model_wrapped)
    try:
        yield
    finally:
        add_hooks(host.model_wrapped)

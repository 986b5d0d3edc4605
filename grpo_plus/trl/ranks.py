"""Ranks and wrapped models: gather, broadcast, the model inside its wrappers, and weights sharded by FSDP or ZeRO-3."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from torch import Tensor

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


def whole(weights: Iterable[Tensor], *, change: bool = False) -> AbstractContextManager[Any]:
    """Inside the block every process has the weights whole that ZeRO-3 has taken apart; others are left alone.

    Every process enters it. With ``change`` those of the main process are what all have afterwards.
    """
    apart = [weight for weight in weights if hasattr(weight, "ds_id")]
    if not apart:
        return nullcontext()
    import deepspeed

    gathered: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
        apart, modifier_rank=0 if change else None
    )
    return gathered


@contextmanager
def drawn_from(host: Host) -> Iterator[Any]:
    """The model without its wrappers, to draw from; ZeRO-3's weights are whole in every process within the block.

    Every process enters it, and makes as many passes as its own completions need.
    """
    model = host.accelerator.unwrap_model(host.model_wrapped)
    if zero_stage(host) != 3:
        yield model
        return
    with whole(model.parameters()), without_zero3_hooks(host):
        yield model


def gathered(weight: Tensor) -> Tensor:
    """A weight whole that FSDP2 has taken apart; every process calls it. Any other as it is."""
    full: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return full


def spread_like(given: Tensor, weight: Tensor) -> Tensor:
    """A whole tensor in pieces over the processes, where FSDP2 has a weight so; every process calls it."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(weight, DTensor):
        return given
    return distribute_tensor(given.to(weight.device), weight.device_mesh, weight.placements)


def piece(weight: Tensor) -> Tensor:
    """The part of a weight that this process keeps; all of it where nothing is taken apart."""
    if hasattr(weight, "to_local"):
        local: Tensor = weight.to_local()
        return local
    of_deepspeed: Tensor | None = getattr(weight, "ds_tensor", None)
    return weight.data if of_deepspeed is None else of_deepspeed


def release(weight: Any) -> None:
    """Forget what DeepSpeed has gathered of a weight whose pieces were changed, so that it gathers them anew."""
    if hasattr(weight, "ds_id"):
        weight.partition()


def on_disk(weight: Tensor) -> bool:
    """DeepSpeed keeps this process's piece of a weight on a disk (``offload_param`` to nvme)."""
    location = getattr(getattr(weight, "ds_tensor", None), "final_location", None)
    return getattr(location, "value", location) == "nvme"


def whole_tensors(host: Host, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Parameters and buffers with these names, gathered from all processes; the main one gets them, on its CPU.

    Every process must call it. Tied parameters stay one tensor.
    """
    main = host.accelerator.is_main_process
    if host.is_fsdp_enabled and not is_fsdp2(host):
        state = host.accelerator.get_state_dict(host.model_wrapped)
        return {name: value for name, value in state.items() if wanted(name)} if main else {}
    found: dict[str, Tensor] = {}
    copies: dict[int, Tensor] = {}
    for wrapped, value in unwrapped_model(host).state_dict(keep_vars=True).items():
        name = wrapped.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
        if not wanted(name):
            continue
        with whole([value]):
            all_of_it = gathered(value)
            if main:
                if id(value) not in copies:
                    copies[id(value)] = all_of_it.detach().to("cpu", copy=True)
                found[name] = copies[id(value)]
    return found

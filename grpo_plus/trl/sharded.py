"""Weights that FSDP or ZeRO-3 has sharded: this process's piece of one, and all of them whole for a moment."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import is_fsdp2, unwrapped_model, without_zero3_hooks, zero_stage


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

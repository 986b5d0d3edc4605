"""As many passes on every rank, while each draws as long as its own completions are.

Under FSDP2 a pass gathers the weights of each layer from all ranks: a rank that makes fewer passes leaves the others
waiting for its pieces. So ranks agree before every pass whether anybody still draws, and one that has come to its end
reads a single token as often as the others need. A pass over prompts and one over tokens gather the same weights in the
same order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from grpo_plus.sampling.decode import is_adapted


class OtherRankFailedError(RuntimeError):
    """Another rank cannot go on; its own message says why."""


@contextmanager
def in_step(model: Any, device: torch.device) -> Iterator[None]:
    """Inside the block ranks may make different numbers of passes of the unwrapped model; leaving it, they wait.

    Every rank enters and leaves. An error of one rank outside of a pass ends the block on all of them.

    Raises:
        OtherRankFailedError: another rank has left the block by an error.
    """
    plain = model.get_base_model() if is_adapted(model) else model
    agreement = _Agreement(device)
    hooks = [
        plain.register_forward_pre_hook(agreement.begins, prepend=True),
        plain.register_forward_hook(agreement.ended),
    ]
    try:
        with _without_gathering(model), _around(model, plain, device):
            yield
            while agreement.anybody_draws():
                _read_a_token(plain, device)
    except OtherRankFailedError:
        raise
    except BaseException:
        agreement.fails()
        if agreement.inside and hasattr(model, "reset_iter_state"):  # torch 2.13; else FSDP2 believes the pass goes on
            model.reset_iter_state()
        raise
    finally:
        for hook in hooks:
            hook.remove()
        let_go(model)


def let_go(model: Any) -> None:
    """Weights in pieces again, of which FSDP2 keeps some or all whole until a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def _without_gathering(model: Any) -> Iterator[None]:
    """The class's own `generate`, in place of one that accelerate has FSDP2 gather weights around.

    Those would be gathered once for all passes, and let go by each rank at its own time.
    """
    found = vars(model).get("generate")
    gathers = getattr(found, "__code__", None) in register_fsdp_forward_method.__code__.co_consts
    if gathers:
        del model.generate
    try:
        yield
    finally:
        if gathers:
            model.generate = found


@contextmanager
def _around(model: Any, plain: Any, device: torch.device) -> Iterator[None]:
    """Where the model around a plain one holds weights of it, they are there as long as the plain one draws."""
    if plain is model:
        yield
        return
    _read_a_token(model, device)  # FSDP2 takes the first module that it sees for the whole
    if isinstance(model, FSDPModule):
        model.unshard()
    yield


class _Agreement:
    """What ranks tell each other before every pass."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.inside = False
        self._waits = False

    def begins(self, *_: Any) -> None:
        if not self._waits:
            self._exchange(draws=True)
        self.inside = True

    def ended(self, *_: Any) -> None:
        self.inside = False

    def anybody_draws(self) -> bool:
        self._waits = True
        return self._exchange(draws=False)

    def fails(self) -> None:
        """Within a pass the others wait for pieces, not for this: they end with this process."""
        if not self.inside:
            self._exchange(draws=False, fails=True)

    def _exchange(self, *, draws: bool, fails: bool = False) -> bool:
        numbers = torch.tensor([draws, fails], dtype=torch.int32, device=self._device)
        torch.distributed.all_reduce(numbers)
        drawing, failed = numbers.tolist()
        if failed and not fails:
            raise OtherRankFailedError("another rank cannot go on drawing completions; its own message says why.")
        return bool(drawing)


@torch.no_grad()
def _read_a_token(model: Any, device: torch.device) -> None:
    """The smallest pass there is; it leaves the random state as it was, whatever dropout takes of it."""
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        model(input_ids=token, attention_mask=torch.ones_like(token), use_cache=False)

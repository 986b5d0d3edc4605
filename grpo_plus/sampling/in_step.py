"""The same number of passes on every rank, for completions of different lengths.

Under FSDP2 a pass gathers the weights of each layer from all ranks, so all ranks must make the same number of passes.
Before every pass the ranks agree if any of them still samples; a rank that has finished runs passes over a single token
until all have. Passes over prompts and over tokens gather the same weights in the same order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from grpo_plus.sampling.decode import is_adapted


class OtherRankFailedError(RuntimeError):
    """Another rank failed; its own error has the reason."""


@contextmanager
def in_step(model: Any, device: torch.device) -> Iterator[None]:
    """Let ranks make different numbers of passes of the unwrapped model; they wait for each other at the end.

    Every rank must enter and leave. An error of one rank outside a pass ends the block on all ranks.

    Raises:
        OtherRankFailedError: another rank raised an error.
    """
    plain = model.get_base_model() if is_adapted(model) else model
    agreement = _Agreement(device)
    hooks = [
        plain.register_forward_pre_hook(agreement.before_pass, prepend=True),
        plain.register_forward_hook(agreement.after_pass),
    ]
    try:
        with _without_gathering(model), _around(model, plain, device):
            yield
            while agreement.any_rank_samples():
                _read_a_token(plain, device)
    except OtherRankFailedError:
        raise
    except BaseException:
        agreement.fails()
        if agreement.inside and hasattr(model, "reset_iter_state"):  # torch 2.13; else FSDP2 sees a pass under way
            model.reset_iter_state()
        raise
    finally:
        for hook in hooks:
            hook.remove()
        reshard(model)


def reshard(model: Any) -> None:
    """Shard the weights again; FSDP2 keeps some or all of them gathered until a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def _without_gathering(model: Any) -> Iterator[None]:
    """Use the class's own `generate` in place of accelerate's, around which FSDP2 gathers weights.

    That gathers them once for all passes, and each rank frees them at a different time.
    """
    replaced = vars(model).get("generate")
    gathers = getattr(replaced, "__code__", None) in register_fsdp_forward_method.__code__.co_consts
    if gathers:
        del model.generate
    try:
        yield
    finally:
        if gathers:
            model.generate = replaced


@contextmanager
def _around(model: Any, plain: Any, device: torch.device) -> Iterator[None]:
    """Gather the weights that a wrapper of the plain model holds, as long as the plain model samples."""
    if plain is model:
        yield
        return
    _read_a_token(model, device)  # FSDP2 takes the first module that runs for its root
    if isinstance(model, FSDPModule):
        model.unshard()
    yield


class _Agreement:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.inside = False
        self._waits = False

    def before_pass(self, *_: Any) -> None:
        if not self._waits:
            self._exchange(draws=True)
        self.inside = True

    def after_pass(self, *_: Any) -> None:
        self.inside = False

    def any_rank_samples(self) -> bool:
        self._waits = True
        return self._exchange(draws=False)

    def fails(self) -> None:
        """Report an error, except during a pass: other ranks then wait for weights and end with this process."""
        if not self.inside:
            self._exchange(draws=False, fails=True)

    def _exchange(self, *, draws: bool, fails: bool = False) -> bool:
        numbers = torch.tensor([draws, fails], dtype=torch.int32, device=self._device)
        torch.distributed.all_reduce(numbers)
        drawing, failed = numbers.tolist()
        if failed and not fails:
            raise OtherRankFailedError("another rank failed while it drew completions; its own error has the reason.")
        return bool(drawing)


@torch.no_grad()
def _read_a_token(model: Any, device: torch.device) -> None:
    """Run a pass over one token; the random state is restored afterwards, dropout included."""
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        model(input_ids=token, attention_mask=torch.ones_like(token), use_cache=False)

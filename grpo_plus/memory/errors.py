"""Running out of memory: the errors that say so, one attempt that may, and the error that ends a run."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

_MESSAGES = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",
    "MPS backend out of memory",
    "DefaultCPUAllocator: can't allocate memory",
)
"""Plain runtime errors of PyTorch and of its libraries that mean the same as its `OutOfMemoryError`."""


class StepTooLargeError(torch.OutOfMemoryError):
    """Memory ran out and nothing can be made smaller; the message says where, why, and which settings to change."""


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error that fewer rows might avoid; `StepTooLargeError` is not one of them."""
    if isinstance(error, StepTooLargeError):
        return False
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def attempt(call: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """The result of a call, or the first line of its out-of-memory error; other errors pass through.

    The error itself is gone on return: as long as it is handled, it holds every tensor of the failed call.
    """
    try:
        return call(), None
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None, first_line(error)


def first_line(error: BaseException) -> str:
    """What an error says, without the advice and the stack that PyTorch adds, nor a full stop."""
    return str(error).split("\n", 1)[0].rstrip(". ")


def release() -> None:
    """Free what failed calls left in reference cycles, and the blocks that PyTorch keeps for later."""
    from accelerate.utils.memory import clear_device_cache

    clear_device_cache(garbage_collection=True)

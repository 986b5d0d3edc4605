"""Out-of-memory errors: detection, an attempt that may run out of memory, and the error that ends a run."""

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
"""Out-of-memory messages of PyTorch and its libraries in plain runtime errors."""


class StepTooLargeError(torch.OutOfMemoryError):
    """Memory ran out in the smallest possible step; the message has the place, the cause and settings to change."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error that fewer rows might avoid; False for `StepTooLargeError`."""
    if isinstance(error, StepTooLargeError):
        return False
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def attempt(call: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """Return the result of a call, or the first line of its out-of-memory error; other errors are raised.

    The error is dropped on return, because its traceback references every tensor of the failed call.
    """
    try:
        return call(), None
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None, first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error without the full stop; PyTorch adds advice and a stack."""
    return str(error).split("\n", 1)[0].rstrip(". ")


def release() -> None:
    """Free reference cycles of failed calls, and PyTorch's cached blocks."""
    from accelerate.utils.memory import clear_device_cache

    clear_device_cache(garbage_collection=True)

"""Checks of tensors, and the errors of tables of rewards and steps."""

from typing import NoReturn

import torch
from torch import Tensor


def fail(field: str, expected: str, value: object) -> NoReturn:
    """Raise an error with the field, the allowed values and the actual value."""
    raise ValueError(f"{field}: expected {expected}, got {value}.")


def as_tensor(field: str, value: object, dims: int, dtype: torch.dtype) -> Tensor:
    """Convert a tensor to ``dtype``; raise if that would lose information."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{field}: expected a tensor, got {type(value).__name__}. RewardTable.of([...]) takes lists.")
    if value.dim() != dims:
        fail(field, f"{dims} dimension{'s' * (dims > 1)}", f"shape {tuple(value.shape)}")
    if value.is_complex() or (dtype is torch.long and (value.is_floating_point() or value.dtype is torch.bool)):
        fail(field, "integers" if dtype is torch.long else "real numbers", value.dtype)
    return value.detach().to(dtype)


def refuse(bad: Tensor, values: Tensor, field: str, expected: str, of: str) -> None:
    """Raise an error with the first bad value and its index; ``of`` is the noun for the index."""
    if bool(bad.any()):
        at = int(bad.nonzero()[0, 0])
        fail(field, expected, f"{values[at].tolist()} for {of} {at}")


def float_dtype(*values: object) -> torch.dtype:
    """Return float64 if any tensor is float64, else float32: statistics in half precision are worthless."""
    return torch.float64 if any(getattr(value, "dtype", None) is torch.float64 for value in values) else torch.float32


def describe(value: object) -> str:
    """Return dtype and shape of a tensor, or the repr of any other value."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)

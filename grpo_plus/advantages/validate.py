"""Checks of tensors, and the errors of tables of rewards and steps."""

from typing import NoReturn

import torch
from torch import Tensor


def fail(what: str, expected: str, value: object) -> NoReturn:
    """Raise an error that names the field, what is allowed there and what was given."""
    raise ValueError(f"{what}: expected {expected}, got {value}.")


def as_tensor(what: str, value: object, dims: int, dtype: torch.dtype) -> Tensor:
    """The value in the wanted kind of number; anything that would lose information is refused."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what}: expected a tensor, got {type(value).__name__}. RewardTable.of([...]) takes lists.")
    if value.dim() != dims:
        fail(what, f"{dims} dimension{'s' * (dims > 1)}", f"shape {tuple(value.shape)}")
    if value.is_complex() or (dtype is torch.long and (value.is_floating_point() or value.dtype is torch.bool)):
        fail(what, "integers" if dtype is torch.long else "real numbers", value.dtype)
    return value.detach().to(dtype)


def refuse(bad: Tensor, values: Tensor, what: str, expected: str, of: str) -> None:
    """Raise an error that names the first bad value, and the number of what it is a value of."""
    if bool(bad.any()):
        at = int(bad.nonzero()[0, 0])
        fail(what, expected, f"{values[at].tolist()} for {of} {at}")


def float_dtype(*values: object) -> torch.dtype:
    """float64 when any of the tensors is float64, otherwise float32: statistics in half precision are worthless."""
    return torch.float64 if any(getattr(value, "dtype", None) is torch.float64 for value in values) else torch.float32


def describe(value: object) -> str:
    """A tensor by dtype and shape, anything else as it is written."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)

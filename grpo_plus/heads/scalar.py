"""A linear head with one output."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from grpo_plus.heads.stored import copies, load_into


class ScalarHead(nn.Module):
    """w · h + b for hidden states (…, H), in the head's own dtype, whatever precision the pass ran in.

    Weights start at 0, so that every value is 0 before the first update; with ``spread`` they are drawn from a normal
    distribution of this standard deviation, by a generator of their own.
    """

    def __init__(
        self, hidden_size: int, dtype: torch.dtype = torch.float32, *, spread: float = 0.0, device: str = "cpu"
    ) -> None:
        super().__init__()
        weight_H = torch.zeros(hidden_size, dtype=dtype)
        if spread:
            weight_H.normal_(0.0, spread, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(weight_H.to(device))
        self.bias = nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """One number for each hidden state."""
        with torch.autocast(hidden.device.type, enabled=False):
            return hidden.to(self.weight.dtype) @ self.weight + self.bias

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the weights, on the CPU."""
        return copies(dict(self.named_parameters()))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these weights."""
        load_into(dict(self.named_parameters()), tensors)

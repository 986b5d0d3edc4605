"""AdamW for the weights of a head, separate from the policy's optimizer: averaged gradients, state as tensors."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from grpo_plus.heads.scalar import copies


class OwnAdamW:
    """AdamW with gradient clipping over named parameters, the same on every rank.

    ``average`` averages a tensor over all ranks; None for one process.
    """

    _MOMENTS = ("exp_avg", "exp_avg_sq", "step")

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0,
        average: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        self._clip = max_grad_norm
        self._average = average
        # One weight at a time: the default on CUDA, all at once, copies them all.
        self._adamw = torch.optim.AdamW(
            list(self.parameters.values()), lr=learning_rate, weight_decay=weight_decay, foreach=False
        )

    def step(self) -> float:
        """Update the weights, clear the gradients and return their norm before clipping.

        All ranks must call it. A norm that is not finite changes nothing.
        """
        gradients = []
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        if self._average is not None:
            flat = self._average(torch.cat([gradient.reshape(-1).float() for gradient in gradients]))
            for gradient, part in zip(gradients, torch.split(flat, [each.numel() for each in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        norm = float(nn.utils.get_total_norm(gradients))
        if math.isfinite(norm):
            if self._clip is not None and norm > self._clip:
                for gradient in gradients:
                    gradient.mul_(self._clip / (norm + 1e-6))
            self._adamw.step()
        self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments on the CPU; empty before the first step."""
        states = {name: self._adamw.state.get(parameter, {}) for name, parameter in self.parameters.items()}
        return copies({f"{name}/{kind}": tensor for name, state in states.items() for kind, tensor in state.items()})

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the moments that `tensors` returned."""
        if not tensors:
            self._adamw.state.clear()
            return
        expected = {f"{name}/{moment}" for name in self.parameters for moment in self._MOMENTS}
        if tensors.keys() != expected:
            name = min(tensors.keys() ^ expected)
            raise ValueError(f"its optimizer has other weights than this run's ({name})")
        for name, parameter in self.parameters.items():
            state = {}
            for moment in self._MOMENTS:
                tensor = tensors[f"{name}/{moment}"]
                device = parameter.device if moment != "step" else torch.device("cpu")
                state[moment] = tensor.to(device, copy=True)
            self._adamw.state[parameter] = state

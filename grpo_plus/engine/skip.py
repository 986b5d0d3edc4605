"""Rows that cannot change the gradient, and what stands in their place."""

import torch


def idle_rows(driver: torch.Tensor, mask_BC: torch.Tensor, *, zero_is_idle: bool) -> torch.Tensor:
    """Rows, (B,) bool, that need no forward and no backward pass.

    A row without a trainable token takes no part in any loss. ``driver``, (B,) or (B, C), has the advantages or what
    stands for them. Where it is exactly zero at every trainable token the row's gradient is exactly zero, if the loss
    pulls on nothing else (``zero_is_idle``).
    """
    trainable_BC = mask_BC.bool()
    if not zero_is_idle:
        return ~trainable_BC.any(dim=1)
    values_BC = driver[:, None] if driver.dim() == 1 else driver
    return ~((values_BC != 0) & trainable_BC).any(dim=1)


def stand_in(old_BC: torch.Tensor | None, scored_BC: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (B, C) of tokens that are not scored: the old ones, so that their ratio is 1; zeros elsewhere.

    Without old ones the loss takes the log-probabilities themselves for old, and any constant gives a ratio of 1.
    A constant beside real old ones would not do: its ratio may overflow, and zero times infinity is not zero.
    """
    if old_BC is None:
        return torch.zeros_like(scored_BC, dtype=torch.float32)
    return torch.where(scored_BC, 0.0, old_BC.detach().float())


def fill_entropy(
    entropies_BC: torch.Tensor, idle_B: torch.Tensor, mask_BC: torch.Tensor, *, nothing: float
) -> torch.Tensor:
    """Give the idle rows the mean entropy of the live tokens, so that a mean over all rows is the mean over live ones.

    Where no token is live they get ``nothing``.
    """
    live_BC = mask_BC.bool() & ~idle_B[:, None]
    count = live_BC.sum()
    mean = torch.where(live_BC, entropies_BC.detach(), 0.0).sum() / count.clamp(min=1)
    return torch.where(idle_B[:, None], torch.where(count > 0, mean, nothing), entropies_BC)

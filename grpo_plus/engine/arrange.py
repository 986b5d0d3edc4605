"""Assignment of rows to micro-batches, and the rows that can be skipped because they cannot change the gradient.

The completions of a prompt share a micro-batch, and so do rows without work. Only rows of the same optimizer step are
swapped, so the rows of each step are TRL's. Every micro-batch keeps its number of rows, because TRL's losses average
over them.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import gcd
from typing import Any

import numpy as np
import torch

from grpo_plus.engine.trees import in_order


def block_size(steps_per_generation: int, gradient_accumulation_steps: int) -> int:
    """Return the number of micro-batches that share an optimizer step in every pass over the generation batch.

    Generation batches start at multiples of the first number and optimizer steps at multiples of the second, both
    counted from the start of an epoch, which is a multiple of both or of their greatest common divisor.
    """
    return gcd(steps_per_generation, gradient_accumulation_steps)


def families(sequences: Sequence[np.ndarray], prompts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the family of each row, and the rank of each row in the order of their tokens.

    Rows are a prompt and a completion. Rows of a family have at least half of a prompt in common, as with environments
    that start each completion of a prompt differently.
    """
    order, common = in_order(sequences)
    family, ranks = [0] * len(order), [0] * len(order)
    for place, row in enumerate(order):
        before = order[place - 1]
        alike = place > 0 and 2 * common[place] >= max(prompts[row], prompts[before])
        family[row], ranks[row] = family[before] if alike else place, place
    return family, ranks


def arrange(
    keys: Sequence[Hashable],
    sizes: Sequence[int],
    live: Sequence[bool],
    rows_per_batch: int,
    *,
    family: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
) -> list[int]:
    """Return an order of the rows of one block, to be cut into micro-batches of ``rows_per_batch``, a divisor of them.

    Live rows have work to do. Live rows of one prompt (equal keys) stay together: the largest groups first, each in the
    fullest micro-batch with room for it; a group without such a micro-batch is split over the free places. Rows without
    work fill the rest. Groups of equal size are sorted by ``family``, then by tokens. A group is split in the order of
    ``ranks``.
    """
    family = range(len(keys)) if family is None else family
    total: dict[int, int] = {}
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        if live[row]:
            groups.setdefault(key, []).append(row)
            total[family[row]] = total.get(family[row], 0) + sizes[row]

    def order(group: list[int]) -> tuple[int, ...]:
        among = family[group[0]]
        return -len(group), -total[among], among, -sum(sizes[row] for row in group)

    batches: list[list[int]] = [[] for _ in range(len(keys) // rows_per_batch)]
    left_over: list[int] = []
    for group in sorted(groups.values(), key=order):
        split = ranks is not None and len(group) > rows_per_batch
        rest = sorted(group, key=ranks.__getitem__) if split and ranks is not None else group
        while (
            len(rest) > rows_per_batch and (empty := next((batch for batch in batches if not batch), None)) is not None
        ):
            empty.extend(rest[:rows_per_batch])
            rest = rest[rows_per_batch:]
        room = [batch for batch in batches if len(batch) + len(rest) <= rows_per_batch]
        if room and rest:
            max(room, key=len).extend(rest)
        else:
            left_over.extend(rest)
    left_over += [row for row in range(len(keys)) if not live[row]]
    for batch in batches:
        while len(batch) < rows_per_batch:
            batch.append(left_over.pop(0))
    return [row for batch in batches for row in batch]


def is_row_aligned(batch: Mapping[str, Any], rows: int) -> bool:
    """Return True if every value of the batch is one per row, or one for all."""
    return all(
        value is None
        or (isinstance(value, torch.Tensor) and (value.dim() == 0 or value.shape[0] == rows))
        or (isinstance(value, list) and len(value) == rows)
        for value in batch.values()
    )


def reorder(batches: Sequence[Mapping[str, Any]], order: Sequence[int]) -> list[dict[str, Any]]:
    """Return the micro-batches with their rows reordered; ``order`` has indices into all their rows."""
    rows = len(order) // len(batches)
    result: list[dict[str, Any]] = [{} for _ in batches]
    for name, first in batches[0].items():
        if isinstance(first, torch.Tensor) and first.dim() > 0:
            joined = torch.cat([batch[name] for batch in batches])
            index = torch.tensor(list(order), device=joined.device)
            parts: Sequence[Any] = torch.split(joined[index], rows)
        elif isinstance(first, list):
            everything = [item for batch in batches for item in batch[name]]
            parts = [[everything[row] for row in order[at : at + rows]] for at in range(0, len(order), rows)]
        else:
            parts = [batch[name] for batch in batches]
        for target, part in zip(result, parts, strict=True):
            target[name] = part
    return result


def idle_rows(driver: torch.Tensor, mask_BC: torch.Tensor, *, zero_is_idle: bool) -> torch.Tensor:
    """Return the rows, (B,) bool, that need no forward and no backward pass.

    A row without a trainable token takes no part in any loss. ``driver``, (B,) or (B, C), has the advantages or a
    substitute. If it is exactly zero at every trainable token, so is the row's gradient, unless the loss has other
    terms (``zero_is_idle`` is False).
    """
    trainable_BC = mask_BC.bool()
    if not zero_is_idle:
        return ~trainable_BC.any(dim=1)
    values_BC = driver[:, None] if driver.dim() == 1 else driver
    return ~((values_BC != 0) & trainable_BC).any(dim=1)


def unscored_logps(old_BC: torch.Tensor | None, scored_BC: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities (B, C) of tokens that are not scored: the old ones, for a ratio of 1; zero elsewhere.

    Without old ones the loss uses the log-probabilities themselves, and any constant has a ratio of 1. With old ones a
    constant may have a ratio that overflows, and zero times infinity is not zero.
    """
    if old_BC is None:
        return torch.zeros_like(scored_BC, dtype=torch.float32)
    return torch.where(scored_BC, 0.0, old_BC.detach().float())


def fill_entropy(
    entropies_BC: torch.Tensor, idle_B: torch.Tensor, mask_BC: torch.Tensor, *, nothing: float
) -> torch.Tensor:
    """Set the entropy of idle rows to the mean of the live tokens, so that the mean over all rows is the live mean.

    Without live tokens they get ``nothing``.
    """
    live_BC = mask_BC.bool() & ~idle_B[:, None]
    count = live_BC.sum()
    mean = torch.where(live_BC, entropies_BC.detach(), 0.0).sum() / count.clamp(min=1)
    return torch.where(idle_B[:, None], torch.where(count > 0, mean, nothing), entropies_BC)

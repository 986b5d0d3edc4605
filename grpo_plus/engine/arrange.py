"""Which rows share a micro-batch, and which need not run: those that cannot change the gradient.

The completions of a prompt come together, and so do rows without work. Only rows of the same optimizer step change
places, so no step sees other rows than TRL drew for it, and every micro-batch keeps its number of rows, because TRL's
losses average over them.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import gcd
from typing import Any

import numpy as np
import torch

from grpo_plus.engine.trees import in_order


def block_size(steps_per_generation: int, gradient_accumulation_steps: int) -> int:
    """Micro-batches that surely share an optimizer step, each time the generation batch is gone through.

    Generation batches start at multiples of the first number and optimizer steps at multiples of the second, both
    counted from the start of an epoch, which is a multiple of both or of their greatest common divisor.
    """
    return gcd(steps_per_generation, gradient_accumulation_steps)


def families(sequences: Sequence[np.ndarray], prompts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Numbers that are equal for rows that begin alike, and the place of each row among all by its tokens.

    Rows are a prompt and a completion. Those of a family have at least half of a prompt in common, as where an
    environment tells each completion of a prompt something else.
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
    """An order of the rows of one block, to be cut into micro-batches of ``rows_per_batch``, a divisor of their number.

    Live rows have work to do. Those of one prompt, which have equal keys, go together, the largest groups first, each
    into the fullest micro-batch that holds it whole; what fits nowhere is split over the places left. Rows without work
    fill the rest. Among groups of equally many rows those of a ``family`` come together, and those of similar sizes in
    tokens. A group that has to be split is split by ``ranks``.
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
        whole = sorted(group, key=ranks.__getitem__) if split and ranks is not None else group
        while (
            len(whole) > rows_per_batch and (empty := next((batch for batch in batches if not batch), None)) is not None
        ):
            empty.extend(whole[:rows_per_batch])
            whole = whole[rows_per_batch:]
        room = [batch for batch in batches if len(batch) + len(whole) <= rows_per_batch]
        if room and whole:
            max(room, key=len).extend(whole)
        else:
            left_over.extend(whole)
    left_over += [row for row in range(len(keys)) if not live[row]]
    for batch in batches:
        while len(batch) < rows_per_batch:
            batch.append(left_over.pop(0))
    return [row for batch in batches for row in batch]


def is_row_aligned(batch: Mapping[str, Any], rows: int) -> bool:
    """Every value of the batch is one per row, or one for all."""
    return all(
        value is None
        or (isinstance(value, torch.Tensor) and (value.dim() == 0 or value.shape[0] == rows))
        or (isinstance(value, list) and len(value) == rows)
        for value in batch.values()
    )


def reorder(batches: Sequence[Mapping[str, Any]], order: Sequence[int]) -> list[dict[str, Any]]:
    """The same micro-batches with their rows in another order, given over all of them."""
    rows = len(order) // len(batches)
    result: list[dict[str, Any]] = [{} for _ in batches]
    for name, first in batches[0].items():
        if isinstance(first, torch.Tensor) and first.dim() > 0:
            joined = torch.cat([batch[name] for batch in batches])
            index = torch.tensor(list(order), device=joined.device)
            for position, part in enumerate(torch.split(joined[index], rows)):
                result[position][name] = part
        elif isinstance(first, list):
            everything = [item for batch in batches for item in batch[name]]
            for position in range(len(batches)):
                chosen = order[position * rows : (position + 1) * rows]
                result[position][name] = [everything[row] for row in chosen]
        else:
            for position, batch in enumerate(batches):
                result[position][name] = batch[name]
    return result


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

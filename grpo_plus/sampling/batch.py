"""Rows that grow at the same time: each with its own tokens, positions and mask, on one cache padded left."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Batch:
    """The rows in flight; ``rows`` says which completion each is.

    The cache is padded left. The mask, (R, S), is 1 where it holds a token of the row. ``seen``, (R, S), are the
    tokens; padding repeats one of the row's own. The logits, (R, V), are of each row's next token.
    """

    rows: list[int]
    cache: Any
    mask: torch.Tensor
    seen: torch.Tensor
    logits: torch.Tensor


def read(model: Any, prompts: Sequence[Sequence[int]], rows: list[int], *, pad: int, device: Any) -> Batch:
    """Read the distinct ``prompts`` in one pass, and hand each of the ``rows`` a copy of its own."""
    from transformers import DynamicCache

    distinct = list(dict.fromkeys(map(tuple, prompts)))
    place = {prompt: number for number, prompt in enumerate(distinct)}
    width = max(map(len, distinct))
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in distinct], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in distinct], device=device)
    cache = DynamicCache(config=model.config)
    logits = _forward(model, ids, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
    index = torch.tensor([place[tuple(prompt)] for prompt in prompts], device=device)
    if len(rows) != len(distinct):
        cache.batch_select_indices(index)
    seen = torch.where(mask.bool(), ids, ids[:, -1:])
    return Batch(rows, cache, mask[index], seen[index], logits[index])


def _forward(
    model: Any, ids_RS: torch.Tensor, mask_RS: torch.Tensor, positions_RS: torch.Tensor, cache: Any
) -> torch.Tensor:
    output = model(
        input_ids=ids_RS,
        attention_mask=mask_RS,
        position_ids=positions_RS,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits_RV: torch.Tensor = output.logits[:, -1].to(torch.float32, copy=True)
    return logits_RV


def advance(model: Any, batch: Batch, tokens_R: torch.Tensor) -> None:
    """One step of every row."""
    step_R1 = tokens_R[:, None]
    positions_R1 = batch.mask.sum(dim=1, keepdim=True)
    batch.mask = torch.cat([batch.mask, torch.ones_like(step_R1)], dim=1)
    batch.seen = torch.cat([batch.seen, step_R1], dim=1)
    batch.logits = _forward(model, step_R1, batch.mask, positions_R1, batch.cache)


def keep(batch: Batch, index: torch.Tensor) -> None:
    """Drop the other rows, and the columns that were padding for all that stay."""
    batch.rows = [batch.rows[place] for place in index.tolist()]
    mask = batch.mask[index]
    start = int(mask.argmax(dim=1).min())
    batch.mask, batch.seen = mask[:, start:], batch.seen[index][:, start:]
    batch.logits = batch.logits[index]
    for layer in batch.cache.layers:
        layer.keys = layer.keys[index][..., start:, :].contiguous()
        layer.values = layer.values[index][..., start:, :].contiguous()


def join(batch: Batch | None, fresh: Batch) -> Batch:
    """Put new rows beside those in flight, if there are any, each padded left to the longer of the two."""
    if batch is None:
        return fresh
    width = max(batch.mask.shape[1], fresh.mask.shape[1])
    for old, new in zip(batch.cache.layers, fresh.cache.layers, strict=True):
        old.keys = torch.cat([_wide(old.keys, width), _wide(new.keys, width)])
        old.values = torch.cat([_wide(old.values, width), _wide(new.values, width)])
    masks = [_columns(part.mask, width, torch.zeros_like(part.mask[:, :1])) for part in (batch, fresh)]
    seen = [_columns(part.seen, width, part.seen[:, :1]) for part in (batch, fresh)]
    logits = torch.cat([batch.logits, fresh.logits])
    return Batch(batch.rows + fresh.rows, batch.cache, torch.cat(masks), torch.cat(seen), logits)


def _wide(states: torch.Tensor, width: int) -> torch.Tensor:
    """Keys or values (R, heads, S, d) with zeros in front."""
    return torch.nn.functional.pad(states, (0, 0, width - states.shape[2], 0))


def _columns(values_RS: torch.Tensor, width: int, filler_R1: torch.Tensor) -> torch.Tensor:
    return torch.cat([filler_R1.expand(-1, width - values_RS.shape[1]), values_RS], dim=1)

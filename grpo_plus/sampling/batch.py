"""A batch of growing rows: each has its own tokens, positions and mask; the shared cache is padded left."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROOM = 64
"""Minimum growth of the text buffer, in tokens."""


@dataclass
class RowBatch:
    """The rows in flight, on the device; ``rows``, (R,), are the indices of their completions.

    ``text``, (R, S), has prompt and completion from the left: ``length`` tokens, the first ``start`` of them the
    prompt's. It is padded with the row's first token. ``reach`` is the greatest length. `advance` reads the last token
    of each row and sets the ``logits``, (R, V), of the next one. ``mask``, (R, C), is 1 for the columns of the cache
    that hold a token of the row.
    """

    rows: torch.Tensor
    text: torch.Tensor
    length: torch.Tensor
    start: torch.Tensor
    cache: Any
    mask: torch.Tensor
    logits: torch.Tensor
    reach: int

    def add(self, tokens_R: torch.Tensor) -> None:
        """Append a token to each row."""
        if self.reach + 1 > self.text.shape[1]:
            self.text = _wide(self.text, self.reach + 1 + max(ROOM, self.reach // 4))
        self.text.scatter_(1, self.length[:, None], tokens_R[:, None])
        self.length = self.length + 1
        self.reach += 1

    def completions(self, places: torch.Tensor) -> list[list[int]]:
        """Return the sampled tokens of rows."""
        texts = self.text[places, : self.reach].tolist()
        spans = torch.stack([self.start[places], self.length[places]], dim=1).tolist()
        return [text[start:end] for text, (start, end) in zip(texts, spans, strict=True)]


def read(model: Any, prompts: Sequence[Sequence[int]], starts: Sequence[int], rows: list[int], device: Any) -> RowBatch:
    """Read the distinct ``prompts`` in one pass and return a batch with a copy for each of the ``rows``.

    The tokens of a prompt after its first ``starts`` are the start of the row's completion.
    """
    from transformers import DynamicCache

    distinct = list(dict.fromkeys(map(tuple, prompts)))
    place = {prompt: number for number, prompt in enumerate(distinct)}
    width = max(map(len, distinct))
    lengths = torch.tensor([len(prompt) for prompt in distinct], device=device)
    text = torch.tensor([[*prompt] + [prompt[0]] * (width - len(prompt)) for prompt in distinct], device=device)
    columns = torch.arange(width, device=device) - (width - lengths)[:, None]
    mask = (columns >= 0).long()
    positions = columns.clamp(min=0)
    cache = DynamicCache(config=model.config)
    logits = _forward(model, text.gather(1, positions), mask, positions, cache)
    index = torch.tensor([place[tuple(prompt)] for prompt in prompts], device=device)
    if len(rows) != len(distinct):
        _choose(cache, index)
    length_R = lengths[index]
    return RowBatch(
        torch.tensor(rows, device=device),
        text[index],
        length_R,
        torch.tensor(starts, device=device),
        cache,
        mask[index],
        logits[index],
        width,
    )


def _forward(
    model: Any, ids_RK: torch.Tensor, mask_RC: torch.Tensor, positions_RK: torch.Tensor, cache: Any
) -> torch.Tensor:
    output = model(
        input_ids=ids_RK,
        attention_mask=mask_RC,
        position_ids=positions_RK,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits_RV: torch.Tensor = output.logits[:, -1].float()
    return logits_RV


def advance(model: Any, batch: RowBatch) -> None:
    """Read the last token of every row."""
    last_R1 = batch.length[:, None] - 1
    batch.mask = torch.nn.functional.pad(batch.mask, (0, 1), value=1)
    batch.logits = _forward(model, batch.text.gather(1, last_R1), batch.mask, last_R1, batch.cache)


def keep(batch: RowBatch, index: torch.Tensor) -> None:
    """Drop all other rows and the columns that are padding for the rest; `advance` computes their logits."""
    names = ("rows", "text", "length", "start", "mask")
    tensors = {name: getattr(batch, name)[index] for name in names}
    start = int(tensors["mask"].argmax(dim=1).min())
    tensors["mask"] = tensors["mask"][:, start:]
    _choose(batch.cache, index, start)
    for name, values in tensors.items():  # all or none if memory runs out
        setattr(batch, name, values)


def _choose(cache: Any, index: torch.Tensor, start: int = 0) -> None:
    for layer in cache.layers:
        layer.keys = layer.keys[:, :, start:].index_select(0, index)
        layer.values = layer.values[:, :, start:].index_select(0, index)


def join(batch: RowBatch | None, fresh: RowBatch) -> RowBatch:
    """Add new rows to those in flight; both caches are padded left to the longer one."""
    if batch is None:
        return fresh
    width = max(batch.mask.shape[1], fresh.mask.shape[1])
    for old, new in zip(batch.cache.layers, fresh.cache.layers, strict=True):
        old.keys, old.values = (
            torch.cat([torch.nn.functional.pad(part, (0, 0, width - part.shape[2], 0)) for part in pair])
            for pair in ((old.keys, new.keys), (old.values, new.values))
        )
    masks = [torch.nn.functional.pad(part.mask, (width - part.mask.shape[1], 0)) for part in (batch, fresh)]
    reach = max(batch.text.shape[1], fresh.text.shape[1])
    texts = [_wide(part.text, reach) for part in (batch, fresh)]
    return RowBatch(
        torch.cat([batch.rows, fresh.rows]),
        torch.cat(texts),
        torch.cat([batch.length, fresh.length]),
        torch.cat([batch.start, fresh.start]),
        batch.cache,
        torch.cat(masks),
        torch.cat([batch.logits, fresh.logits]),
        max(batch.reach, fresh.reach),
    )


def _wide(text_RS: torch.Tensor, width: int) -> torch.Tensor:
    """Return the text widened with each row's first token."""
    return torch.cat([text_RS, text_RS[:, :1].expand(-1, width - text_RS.shape[1])], dim=1)

"""Rows that grow at the same time: each with its own tokens, positions and mask, on one cache padded left."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROOM = 64
"""Tokens that the texts grow by at least."""


@dataclass
class Batch:
    """The rows in flight, all on the device; ``rows``, (R,), says which completion each is.

    ``text``, (R, S), holds prompt and completion from the left, ``length`` tokens of which ``start`` are the prompt's;
    behind them it repeats the row's first token. ``reach`` is the greatest length. The last token of a row has not been
    read until `advance` leaves the ``logits``, (R, V), behind it. ``mask``, (R, C), is 1 where a column of the cache
    holds a token of the row.
    """

    rows: torch.Tensor
    text: torch.Tensor
    length: torch.Tensor
    start: torch.Tensor
    cache: Any
    mask: torch.Tensor
    logits: torch.Tensor
    reach: int

    @property
    def drawn(self) -> torch.Tensor:
        """How many tokens each row has drawn."""
        return self.length - self.start

    def seen(self) -> torch.Tensor:
        """What each row holds, (R, S); padding repeats a token of the row."""
        return self.text[:, : self.reach]

    def add(self, tokens_R: torch.Tensor) -> None:
        """The next token of each row."""
        if self.reach + 1 > self.text.shape[1]:
            self.text = _wide(self.text, self.reach + 1 + max(ROOM, self.reach // 4))
        self.text.scatter_(1, self.length[:, None], tokens_R[:, None])
        self.length = self.length + 1
        self.reach += 1

    def completions(self, places: torch.Tensor) -> list[list[int]]:
        """What rows have drawn so far."""
        texts = self.text[places, : self.reach].tolist()
        spans = torch.stack([self.start[places], self.length[places]], dim=1).tolist()
        return [text[start:end] for text, (start, end) in zip(texts, spans, strict=True)]


def read(model: Any, prompts: Sequence[Sequence[int]], starts: Sequence[int], rows: list[int], device: Any) -> Batch:
    """Read the distinct ``prompts`` in one pass, and hand each of the ``rows`` a copy of its own.

    Behind the first ``starts`` tokens of each stands what its row has drawn already.
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
    return Batch(
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


def advance(model: Any, batch: Batch) -> None:
    """Read the last token of every row."""
    last_R1 = batch.length[:, None] - 1
    batch.mask = torch.nn.functional.pad(batch.mask, (0, 1), value=1)
    batch.logits = _forward(model, batch.text.gather(1, last_R1), batch.mask, last_R1, batch.cache)


def keep(batch: Batch, index: torch.Tensor) -> None:
    """Drop the other rows, and the columns that were padding for all that stay; `advance` makes their logits."""
    names = ("rows", "text", "length", "start", "mask")
    kept = {name: getattr(batch, name)[index] for name in names}
    start = int(kept["mask"].argmax(dim=1).min())
    kept["mask"] = kept["mask"][:, start:]
    _choose(batch.cache, index, start)
    for name, values in kept.items():  # all or none, should memory run out
        setattr(batch, name, values)


def _choose(cache: Any, index: torch.Tensor, start: int = 0) -> None:
    for layer in cache.layers:
        layer.keys = layer.keys[:, :, start:].index_select(0, index)
        layer.values = layer.values[:, :, start:].index_select(0, index)


def join(batch: Batch | None, fresh: Batch) -> Batch:
    """Put new rows beside those in flight, if there are any, each cache padded left to the longer of the two."""
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
    return Batch(
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
    """Room for more tokens, filled with each row's first."""
    return torch.cat([text_RS, text_RS[:, :1].expand(-1, width - text_RS.shape[1])], dim=1)

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
    read until `advance` leaves the ``logits``, (R, K, V), behind it and behind the K − 1 guessed tokens ``drafts``, -1
    for none. ``mask``, (R, C), is 1 where a column of the cache holds a token of the row.
    """

    rows: torch.Tensor
    text: torch.Tensor
    length: torch.Tensor
    start: torch.Tensor
    cache: Any
    mask: torch.Tensor
    logits: torch.Tensor
    drafts: torch.Tensor
    reach: int

    @property
    def drawn(self) -> torch.Tensor:
        """How many tokens each row has drawn."""
        return self.length - self.start

    def seen(self) -> torch.Tensor:
        """What each row has held before each column of the logits, (R * K, S); padding repeats a token of the row."""
        if not self.drafts.shape[1]:
            return self.text[:, : self.reach]
        self._widen(self.drafts.shape[1])
        text_RS, first_R1 = self.text[:, : self.reach + self.drafts.shape[1]].clone(), self.text[:, :1]
        ahead_RJ = torch.arange(self.drafts.shape[1], device=text_RS.device) + self.length[:, None]
        text_RS.scatter_(1, ahead_RJ, torch.where(self.drafts >= 0, self.drafts, first_R1))
        ends_K = torch.arange(self.logits.shape[1], device=text_RS.device)
        there_RKS = torch.arange(text_RS.shape[1], device=text_RS.device) < (self.length[:, None] + ends_K)[:, :, None]
        return torch.where(there_RKS, text_RS[:, None], first_R1[:, None]).flatten(0, 1)

    def add(self, tokens_RK: torch.Tensor, kept_RK: torch.Tensor | None) -> None:
        """The first of these tokens, as many as are kept; others are forgotten. None: one a row."""
        columns = tokens_RK.shape[1]
        self._widen(columns)
        if kept_RK is None:
            self.text.scatter_(1, self.length[:, None], tokens_RK)
            self.length = self.length + 1
            return
        column_K = torch.arange(columns, device=tokens_RK.device)
        self.text.scatter_(1, self.length[:, None] + column_K, torch.where(kept_RK, tokens_RK, self.text[:, :1]))
        self.length = self.length + kept_RK.sum(dim=1)
        self.mask[:, self.mask.shape[1] - columns + 1 :] *= kept_RK[:, 1:] | (self.drafts < 0)

    def _widen(self, more: int) -> None:
        if self.reach + more > self.text.shape[1]:
            self.text = _wide(self.text, self.reach + more + max(ROOM, self.reach // 4))

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
        length_R.new_zeros(len(rows), 0),
        width,
    )


def _forward(
    model: Any, ids_RK: torch.Tensor, mask_RC: torch.Tensor, positions_RK: torch.Tensor, cache: Any, *, last: int = 1
) -> torch.Tensor:
    output = model(
        input_ids=ids_RK,
        attention_mask=mask_RC,
        position_ids=positions_RK,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=last,
    )
    logits_RKV: torch.Tensor = output.logits[:, -last:].float()
    return logits_RKV


def advance(model: Any, batch: Batch, drafts_RJ: torch.Tensor | None = None) -> None:
    """Read the last token of every row, and guesses behind it."""
    last_R1 = batch.length[:, None] - 1
    token_R1 = batch.text.gather(1, last_R1)
    if drafts_RJ is None:
        batch.drafts = token_R1[:, :0]
        batch.mask = torch.nn.functional.pad(batch.mask, (0, 1), value=1)
        batch.logits = _forward(model, token_R1, batch.mask, last_R1, batch.cache)
        return
    there_RK = torch.nn.functional.pad(drafts_RJ >= 0, (1, 0), value=True)
    batch.drafts = drafts_RJ
    batch.mask = torch.cat([batch.mask, there_RK.long()], dim=1)
    tokens_RK = torch.cat([token_R1, torch.where(drafts_RJ >= 0, drafts_RJ, token_R1)], dim=1)
    positions_RK = last_R1 + there_RK.cumsum(dim=1) - 1
    batch.logits = _forward(model, tokens_RK, batch.mask, positions_RK, batch.cache, last=tokens_RK.shape[1])


def close_gaps(batch: Batch) -> None:
    """Drop the columns of guesses that were wrong, once they are a fifth of all."""
    columns = batch.mask.shape[1]
    if columns < 1.25 * batch.reach + 8:
        return
    order_RC = batch.mask.argsort(dim=1, stable=True)[:, columns - int(batch.mask.sum(dim=1).max()) :]
    batch.mask = batch.mask.gather(1, order_RC)
    for layer in batch.cache.layers:
        index = order_RC[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
        layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)


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
    guessed = batch.drafts.shape[1]
    return Batch(
        torch.cat([batch.rows, fresh.rows]),
        torch.cat(texts),
        torch.cat([batch.length, fresh.length]),
        torch.cat([batch.start, fresh.start]),
        batch.cache,
        torch.cat(masks),
        torch.cat([batch.logits, torch.nn.functional.pad(fresh.logits, (0, 0, 0, guessed))]),
        torch.nn.functional.pad(batch.drafts, (0, 0, 0, len(fresh.rows)), value=-1),
        max(batch.reach, fresh.reach),
    )


def _wide(text_RS: torch.Tensor, width: int) -> torch.Tensor:
    """Room for more tokens, filled with each row's first."""
    return torch.cat([text_RS, text_RS[:, :1].expand(-1, width - text_RS.shape[1])], dim=1)

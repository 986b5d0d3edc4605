"""Completions of many prompts with fewer row-steps than `generate`: same distribution, token by token.

A prompt is read once however many completions it gets; a row that has ended leaves the batch, cache and all; and where
not all rows fit at once, waiting ones take the places of those that ended. Each row keeps its own positions and its own
mask, so what it sees is what it would see alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_plus.qlora.sampler import Sampling, next_tokens, processors


@dataclass
class Batch:
    """The rows in flight.

    Attributes:
        rows: which completion each is.
        cache: keys and values, padded left.
        mask: (R, S), 1 where the cache holds a token of the row.
        seen: (R, S), the tokens; padding repeats one of the row's own.
        logits: (R, V), of each row's next token.
    """

    rows: list[int]
    cache: Any
    mask: torch.Tensor
    seen: torch.Tensor
    logits: torch.Tensor


@dataclass
class Decoded:
    """Completions, and what they cost.

    Attributes:
        completions: tokens of each, the one that ended it included.
        row_steps: rows times steps that were run, prefills aside.
        prefills: prompts that were read.
        places: rows that were in flight at most; fewer than were asked for once memory has run out.
    """

    completions: list[list[int]] = field(default_factory=list)
    row_steps: int = 0
    prefills: int = 0
    places: int = 0

    @property
    def stock_row_steps(self) -> int:
        """What running all rows to the end of the longest takes."""
        return len(self.completions) * (max(map(len, self.completions), default=1) - 1)


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    most_rows: int | None = None,
    device: Any = None,
) -> Decoded:
    """Complete every prompt.

    Where memory runs out, all rows in flight are read again with what they hold so far, half as many at once. No row is
    drawn a second time: to discard rows when they grow long would favour short ones.

    Args:
        model: a causal language model with a plain growing cache that takes positions.
        prompts: token ids, one entry for each completion; equal ones are read once.
        sampling: how tokens are chosen.
        most_rows: how many rows may be in flight; None for all.
        device: where the model's inputs go.
    """
    result = Decoded([[] for _ in prompts], places=len(prompts) if most_rows is None else max(1, most_rows))
    chain = processors(sampling)
    stops = torch.tensor(sampling.stops, dtype=torch.long, device=device)
    first: dict[tuple[int, ...], int] = {}
    for row, prompt in enumerate(prompts):
        first.setdefault(tuple(prompt), row)
    waiting = sorted(range(len(prompts)), key=lambda row: first[tuple(prompts[row])])  # equal prompts side by side
    flying: list[int] = []
    batch: Batch | None = None
    while waiting or flying:
        full = False
        try:
            free = result.places - len(flying)
            if waiting and (batch is None or free >= max(1, result.places // 4)):
                taken, waiting = waiting[:free], waiting[free:]
                flying = flying + taken
                contexts = [[*prompts[row], *result.completions[row]] for row in taken]
                batch = _join(batch, _read(model, contexts, taken, pad=sampling.pad, device=device))
                result.prefills += len(set(map(tuple, contexts)))
            assert batch is not None
            tokens_R = next_tokens(chain, sampling, batch.seen, batch.logits)
            alive = _append(result, batch.rows, tokens_R, stops, sampling.most)
            flying = [batch.rows[place] for place in alive]
            if not alive:
                batch = None
                continue
            if len(alive) < len(tokens_R):
                index = torch.tensor(alive, device=device)
                _keep(batch, index)
                tokens_R = tokens_R[index]
            _advance(model, batch, tokens_R)
            result.row_steps += len(batch.rows)
        except torch.OutOfMemoryError:
            if len(flying) < 2:
                raise
            full = True
        if full:  # outside the handler, where the exception no longer holds the tensors of the failed pass
            result.places = len(flying) // 2
            waiting, flying, batch = flying + waiting, [], None
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return result


def _append(result: Decoded, rows: list[int], tokens_R: torch.Tensor, stops: torch.Tensor, most: int) -> list[int]:
    """Note one token for each row; gives the places of the rows that go on."""
    ended = torch.isin(tokens_R, stops).tolist()
    alive = []
    for place, (row, token) in enumerate(zip(rows, tokens_R.tolist(), strict=True)):
        result.completions[row].append(token)
        if not ended[place] and len(result.completions[row]) < most:
            alive.append(place)
    return alive


def _read(model: Any, prompts: Sequence[Sequence[int]], rows: list[int], *, pad: int, device: Any) -> Batch:
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


def _advance(model: Any, batch: Batch, tokens_R: torch.Tensor) -> None:
    """One step of every row."""
    step_R1 = tokens_R[:, None]
    positions_R1 = batch.mask.sum(dim=1, keepdim=True)
    batch.mask = torch.cat([batch.mask, torch.ones_like(step_R1)], dim=1)
    batch.seen = torch.cat([batch.seen, step_R1], dim=1)
    batch.logits = _forward(model, step_R1, batch.mask, positions_R1, batch.cache)


def _keep(batch: Batch, index: torch.Tensor) -> None:
    """Drop the other rows, and the columns that were padding for all that stay."""
    batch.rows = [batch.rows[place] for place in index.tolist()]
    mask = batch.mask[index]
    start = int(mask.argmax(dim=1).min())
    batch.mask, batch.seen = mask[:, start:], batch.seen[index][:, start:]
    batch.logits = batch.logits[index]
    for layer in batch.cache.layers:
        layer.keys = layer.keys[index][..., start:, :].contiguous()
        layer.values = layer.values[index][..., start:, :].contiguous()


def _join(batch: Batch | None, fresh: Batch) -> Batch:
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

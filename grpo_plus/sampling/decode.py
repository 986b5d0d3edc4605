"""Completions of many prompts with fewer row-steps than `generate`: same distribution, token by token.

A prompt is read once however many completions it gets; a row that has ended leaves the batch, cache and all; and where
not all rows fit at once, waiting ones take the places of those that ended. Each row keeps its own positions and its own
mask, so what it sees is what it would see alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_plus.memory.errors import is_out_of_memory, release
from grpo_plus.sampling.batch import Batch, advance, join, keep, read
from grpo_plus.sampling.sampler import Sampling, next_tokens, processors


@dataclass
class Decoded:
    """Completions, each with the token that ended it, and what they cost.

    ``row_steps`` are rows times steps that were run, prefills aside; ``prefills`` prompts that were read. ``places`` is
    how many rows were in flight at most: fewer than were asked for once memory has run out, ``failures`` times.
    """

    completions: list[list[int]] = field(default_factory=list)
    row_steps: int = 0
    prefills: int = 0
    places: int = 0
    failures: int = 0

    @property
    def stock_row_steps(self) -> int:
        """Row steps of running all rows to the end of the longest."""
        return len(self.completions) * (max(map(len, self.completions), default=1) - 1)


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    most_rows: int | None = None,
    device: Any = None,
    uniform: Callable[[Sequence[int], Sequence[int]], torch.Tensor] | None = None,
) -> Decoded:
    """Complete every prompt; there is one for each completion, and equal ones are read once.

    Where memory runs out, all rows in flight are read again with what they hold so far, half as many at once. No row is
    drawn a second time: to discard rows when they grow long would favour short ones.

    The model needs a plain growing cache and must take positions. At most ``most_rows`` rows are in flight; None for
    all. ``uniform`` gives, for rows and their next places, the numbers in [0, 1) that pick their tokens, so that a
    row's draw does not depend on the others; None draws from torch's own generator.
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
                batch = join(batch, read(model, contexts, taken, pad=sampling.pad, device=device))
                result.prefills += len(set(map(tuple, contexts)))
            assert batch is not None
            numbers_R = (
                None if uniform is None else uniform(batch.rows, [len(result.completions[r]) for r in batch.rows])
            )
            tokens_R = next_tokens(chain, sampling, batch.seen, batch.logits, numbers_R)
            alive = _append(result, batch.rows, tokens_R, stops, sampling.most)
            flying = [batch.rows[place] for place in alive]
            if not alive:
                batch = None
                continue
            if len(alive) < len(tokens_R):
                index = torch.tensor(alive, device=device)
                keep(batch, index)
                tokens_R = tokens_R[index]
            advance(model, batch, tokens_R)
            result.row_steps += len(batch.rows)
        except RuntimeError as error:
            if not is_out_of_memory(error) or len(flying) < 2:
                raise
            full = True
        if full:  # outside the handler, where the exception no longer holds the tensors of the failed pass
            result.places = len(flying) // 2
            result.failures += 1
            waiting, flying, batch = flying + waiting, [], None
            release()
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


def is_adapted(model: Any) -> bool:
    """The model carries adapters of PEFT: what draws is its base model."""
    from peft import PeftModel

    return isinstance(model, PeftModel)

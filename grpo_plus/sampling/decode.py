"""Completions of many prompts with fewer row-steps than `generate`: same distribution, token by token.

A prompt is read once however many completions it gets; a row that has ended leaves the batch, cache and all; and where
not all rows fit at once, waiting ones take the places of those that ended. Each row keeps its own positions and its own
mask, so what it sees is what it would see alone. Tokens stay on the device until their row has ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_plus.memory.errors import is_out_of_memory, release
from grpo_plus.sampling.batch import Batch, advance, join, keep, read
from grpo_plus.sampling.sampler import Numbers, Sampling, pick, processors
from grpo_plus.sampling.support import SupportLog

Uniform = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Numbers in [0, 1) for rows and their places, two tensors of one shape on the device."""


@dataclass
class Decoded:
    """Completions, each with the token that ended it, and what they cost.

    ``row_steps`` are rows times passes, prefills aside; ``prefills`` prompts that were read. ``places`` is how many
    rows were in flight at most: fewer than were asked for once memory has run out, ``failures`` times.
    """

    completions: list[list[int]] = field(default_factory=list)
    row_steps: int = 0
    prefills: int = 0
    places: int = 0
    failures: int = 0

    @property
    def saved(self) -> float:
        """The share of the row steps of running all rows to the end of the longest that were not run."""
        all_steps = len(self.completions) * (max(map(len, self.completions), default=1) - 1)
        return 1 - self.row_steps / all_steps if all_steps else 0.0


def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    most_rows: int | None = None,
    device: Any = None,
    uniform: Uniform | None = None,
    support: SupportLog | None = None,
    again: bool = True,
) -> Decoded:
    """Complete every prompt; there is one for each completion, and equal ones are read once.

    Where memory runs out, all rows in flight are read again with what they hold so far, half as many at once. No row is
    drawn a second time: to discard rows when they grow long would favour short ones. Without ``again`` the error is
    raised: a pass that other ranks take part in cannot be repeated.

    The model needs a plain growing cache and must take positions. At most ``most_rows`` rows are in flight; None for
    all. ``uniform`` gives the numbers that pick the tokens; None makes them from one number of torch's own generator.
    Either way a row's draw does not depend on the others.
    """
    return _Decoding(model, prompts, sampling, most_rows, device, uniform, support).run(again=again)


class _Decoding:
    """One call of `decode`."""

    def __init__(  # noqa: PLR0917 - one caller
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        most_rows: int | None,
        device: Any,
        uniform: Uniform | None,
        support: SupportLog | None,
    ) -> None:
        self.model, self.prompts, self.sampling, self.device = model, prompts, sampling, device
        self.support = support
        self.result = Decoded([[] for _ in prompts], places=len(prompts) if most_rows is None else max(1, most_rows))
        self.chain = processors(sampling)
        self.stops = torch.tensor(sampling.stops, dtype=torch.long, device=device)
        self.uniform: Uniform = uniform or Numbers(len(prompts), device)
        self.shortest = min(map(len, prompts), default=0)
        first: dict[tuple[int, ...], int] = {}
        for row, prompt in enumerate(prompts):
            first.setdefault(tuple(prompt), row)
        self.waiting = sorted(range(len(prompts)), key=lambda row: first[tuple(prompts[row])])  # equal ones together
        self.flying: list[int] = []
        self.batch: Batch | None = None

    @torch.no_grad()
    def run(self, *, again: bool) -> Decoded:
        """Step until no row is left."""
        while self.waiting or self.flying:
            full = False
            try:
                self._step()
            except RuntimeError as error:
                if not again or not is_out_of_memory(error) or len(self.flying) < 2:
                    raise
                full = True
            if full:  # outside the handler, where the exception no longer holds the tensors of the failed pass
                self._halve()
        return self.result

    def _step(self) -> None:
        batch = self.batch = self._filled()
        self._draw(batch)
        if self.flying:
            advance(self.model, batch)
            self.result.row_steps += len(self.flying)
        else:
            self.batch = None

    def _filled(self) -> Batch:
        """The rows in flight, with waiting ones in free places."""
        batch = self.batch
        free = self.result.places - len(self.flying)
        if self.waiting and (batch is None or free >= max(1, self.result.places // 4)):
            taken, self.waiting = self.waiting[:free], self.waiting[free:]
            self.flying = self.flying + taken
            contexts = [[*self.prompts[row], *self.result.completions[row]] for row in taken]
            starts = [len(self.prompts[row]) for row in taken]
            batch = join(batch, read(self.model, contexts, starts, taken, self.device))
            self.result.prefills += len(set(map(tuple, contexts)))
        assert batch is not None
        return batch

    def _draw(self, batch: Batch) -> None:
        """One token for every row."""
        places_R = batch.drawn
        scores_RV: torch.Tensor = self.chain(batch.seen(), batch.logits)
        vocabulary = scores_RV.shape[1]
        furthest = batch.reach - self.shortest + 1  # no row has more tokens after this
        if self.sampling.draw:
            if isinstance(self.uniform, Numbers):
                self.uniform.reserve(min(furthest, self.sampling.most))
            tokens_R = pick(scores_RV, self.uniform(batch.rows, places_R))
        else:
            highest_R, tokens_R = scores_RV.max(dim=-1)
            tokens_R = torch.where(highest_R.isnan(), vocabulary, tokens_R)
        ended_R = self._ends(tokens_R)
        if furthest >= self.sampling.most:
            ended_R = ended_R | (places_R + 1 >= self.sampling.most)
        wrong_R = tokens_R >= vocabulary
        ends, wrongs = torch.stack([ended_R.sum(), wrong_R.sum()]).tolist()  # the step's only wait for the device
        if wrongs:
            raise ValueError("the model's logits are NaN: no token can be drawn. Its weights or inputs are no numbers.")
        if self.support is not None:
            self.support.note(batch.rows, places_R, scores_RV)
        batch.add(tokens_R)
        if ends:
            self._end(batch, ended_R)

    def _ends(self, tokens_R: torch.Tensor) -> torch.Tensor:
        if len(self.sampling.stops) == 1:
            return tokens_R == self.sampling.stops[0]
        return torch.isin(tokens_R, self.stops)

    def _end(self, batch: Batch, ended_R: torch.Tensor) -> None:
        places = ended_R.nonzero().squeeze(1)
        ended = dict(zip(batch.rows[places].tolist(), batch.completions(places), strict=True))
        self.flying = [row for row in self.flying if row not in ended]
        for row, ids in ended.items():
            self.result.completions[row] = ids
        if self.flying:
            keep(batch, (~ended_R).nonzero().squeeze(1))

    def _halve(self) -> None:
        """Let all rows in flight wait with what they hold so far, and half as many places."""
        batch, self.batch = self.batch, None
        self.result.places = len(self.flying) // 2
        self.result.failures += 1
        if batch is not None:
            known = dict(zip(batch.rows.tolist(), batch.completions(torch.arange(len(batch.rows))), strict=True))
            for row in self.flying:
                self.result.completions[row] = known.get(row, self.result.completions[row])
        self.waiting, self.flying = self.flying + self.waiting, []
        del batch
        release()


def is_adapted(model: Any) -> bool:
    """The model carries adapters of PEFT: what draws is its base model."""
    from peft import PeftModel

    return isinstance(model, PeftModel)

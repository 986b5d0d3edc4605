"""Sampling with fewer row-steps than `generate` and the same distribution of every token.

Each distinct prompt is read once. A finished row leaves the batch and the cache; a waiting row takes its place if not
all rows fit at once. Each row has its own positions and mask, so its logits are the same as in a batch of one. Tokens
stay on the device until their row ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_plus.memory.errors import is_out_of_memory, release
from grpo_plus.sampling.allowed_tokens import AllowedTokensLog
from grpo_plus.sampling.batch import RowBatch, advance, join, keep, read
from grpo_plus.sampling.sampler import RandomNumbers, Sampling, pick, processors

Uniform = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns numbers in [0, 1) for rows and positions, two tensors of one shape on the device."""


@dataclass
class DecodeResult:
    """Completions, each with its end token, and their cost.

    ``row_steps`` are rows times passes without prefills; ``prefills`` is the number of prompts read. ``places`` is the
    limit of rows in flight, halved whenever memory runs out; ``failures`` counts that.
    """

    completions: list[list[int]] = field(default_factory=list)
    row_steps: int = 0
    prefills: int = 0
    places: int = 0
    failures: int = 0

    @property
    def saved(self) -> float:
        """The share of row steps saved, compared with running all rows to the length of the longest."""
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
    support: AllowedTokensLog | None = None,
    again: bool = True,
) -> DecodeResult:
    """Complete every prompt (one for each completion); equal prompts are read once.

    If memory runs out, half as many rows stay in flight and all of them are read again with their tokens so far. No row
    is sampled a second time: discarding long rows would favour short ones. Without ``again`` the error is raised:
    ranks that share a pass cannot repeat it.

    The model needs a plain growing cache and a ``position_ids`` argument. At most ``most_rows`` rows are in flight;
    None for all. ``uniform`` returns the numbers that pick the tokens; by default they come from a generator that is
    seeded with one number of torch's. The sample of a row does not depend on any other row.
    """
    return _Decoding(model, prompts, sampling, most_rows, device, uniform, support).run(again=again)


class _Decoding:
    def __init__(  # noqa: PLR0917 - one caller
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        most_rows: int | None,
        device: Any,
        uniform: Uniform | None,
        support: AllowedTokensLog | None,
    ) -> None:
        self.model, self.prompts, self.sampling, self.device = model, prompts, sampling, device
        self.support = support
        self.result = DecodeResult(
            [[] for _ in prompts], places=len(prompts) if most_rows is None else max(1, most_rows)
        )
        self.chain = processors(sampling)
        self.stops = torch.tensor(sampling.stops, dtype=torch.long, device=device)
        self.uniform: Uniform = uniform or RandomNumbers(len(prompts), device)
        self.shortest = min(map(len, prompts), default=0)
        first: dict[tuple[int, ...], int] = {}
        for row, prompt in enumerate(prompts):
            first.setdefault(tuple(prompt), row)
        self.waiting = sorted(range(len(prompts)), key=lambda row: first[tuple(prompts[row])])  # equal ones together
        self.in_flight: list[int] = []
        self.batch: RowBatch | None = None

    @torch.no_grad()
    def run(self, *, again: bool) -> DecodeResult:
        while self.waiting or self.in_flight:
            full = False
            try:
                self._step()
            except RuntimeError as error:
                if not again or not is_out_of_memory(error) or len(self.in_flight) < 2:
                    raise
                full = True
            if full:  # outside the handler: the exception holds the tensors of the failed pass
                self._halve()
        return self.result

    def _step(self) -> None:
        batch = self.batch = self._filled()
        self._draw(batch)
        if self.in_flight:
            advance(self.model, batch)
            self.result.row_steps += len(self.in_flight)
        else:
            self.batch = None

    def _filled(self) -> RowBatch:
        """Return the rows in flight after waiting rows have taken the free places."""
        batch = self.batch
        free = self.result.places - len(self.in_flight)
        if self.waiting and (batch is None or free >= max(1, self.result.places // 4)):
            rows, self.waiting = self.waiting[:free], self.waiting[free:]
            self.in_flight = self.in_flight + rows
            contexts = [[*self.prompts[row], *self.result.completions[row]] for row in rows]
            starts = [len(self.prompts[row]) for row in rows]
            batch = join(batch, read(self.model, contexts, starts, rows, self.device))
            self.result.prefills += len(set(map(tuple, contexts)))
        assert batch is not None
        return batch

    def _draw(self, batch: RowBatch) -> None:
        places_R = batch.length - batch.start
        scores_RV: torch.Tensor = self.chain(batch.text[:, : batch.reach], batch.logits)
        vocabulary = scores_RV.shape[1]
        furthest = batch.reach - self.shortest + 1  # no row has more tokens after this
        if self.sampling.draw:
            if isinstance(self.uniform, RandomNumbers):
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
            raise ValueError("the model's logits are NaN: no token can be drawn. Check its weights and inputs for NaN.")
        if self.support is not None:
            self.support.note(batch.rows, places_R, scores_RV)
        batch.add(tokens_R)
        if ends:
            self._end(batch, ended_R)

    def _ends(self, tokens_R: torch.Tensor) -> torch.Tensor:
        if len(self.sampling.stops) == 1:
            return tokens_R == self.sampling.stops[0]
        return torch.isin(tokens_R, self.stops)

    def _end(self, batch: RowBatch, ended_R: torch.Tensor) -> None:
        places = ended_R.nonzero().squeeze(1)
        ended = dict(zip(batch.rows[places].tolist(), batch.completions(places), strict=True))
        self.in_flight = [row for row in self.in_flight if row not in ended]
        for row, ids in ended.items():
            self.result.completions[row] = ids
        if self.in_flight:
            keep(batch, (~ended_R).nonzero().squeeze(1))

    def _halve(self) -> None:
        """Move all rows in flight back to waiting, with their tokens so far, and halve the places."""
        batch, self.batch = self.batch, None
        self.result.places = len(self.in_flight) // 2
        self.result.failures += 1
        if batch is not None:
            tokens = dict(zip(batch.rows.tolist(), batch.completions(torch.arange(len(batch.rows))), strict=True))
            for row in self.in_flight:
                self.result.completions[row] = tokens.get(row, self.result.completions[row])
        self.waiting, self.in_flight = self.in_flight + self.waiting, []
        del batch
        release()


def is_adapted(model: Any) -> bool:
    """Return True if the model is a PEFT model; its base model samples."""
    from peft import PeftModel

    return isinstance(model, PeftModel)

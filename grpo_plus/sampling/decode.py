"""Completions of many prompts with fewer row-steps than `generate`: same distribution, token by token.

A prompt is read once however many completions it gets; a row that has ended leaves the batch, cache and all; and where
not all rows fit at once, waiting ones take the places of those that ended. Each row keeps its own positions and its own
mask, so what it sees is what it would see alone. Tokens stay on the device until their row has ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from grpo_plus.memory.errors import is_out_of_memory, release
from grpo_plus.sampling.batch import Batch, advance, close_gaps, join, keep, read
from grpo_plus.sampling.drafts import EVERY, LENGTHS, Drafts
from grpo_plus.sampling.sampler import Numbers, Sampling, pick, processors

Uniform = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Numbers in [0, 1) for rows and their places, two tensors of one shape on the device."""

WORTH = 256
"""Tokens of completions that are learnt from together."""


class Support(Protocol):
    """Keeps what could have been drawn."""

    def note(self, rows: torch.Tensor, places: torch.Tensor, scores_RV: torch.Tensor) -> None:
        """Scores that tokens are drawn from, -inf for those that could not be.

        One row a token: the completion, and its place there. A pair comes again after running out of memory.
        """


@dataclass
class Decoded:
    """Completions, each with the token that ended it, and what they cost.

    ``row_steps`` are rows times columns that were run, prefills aside, and ``row_passes`` rows times passes;
    ``prefills`` prompts that were read, for ``reads`` rows. ``places`` is how many rows were in flight at most: fewer
    than were asked for once memory has run out, ``failures`` times. Of ``tried`` guessed tokens ``right`` ones were
    those that were drawn.
    """

    completions: list[list[int]] = field(default_factory=list)
    row_steps: int = 0
    row_passes: int = 0
    prefills: int = 0
    reads: int = 0
    places: int = 0
    failures: int = 0
    tried: int = 0
    right: int = 0

    @property
    def stock_row_steps(self) -> int:
        """Row steps of running all rows to the end of the longest."""
        return len(self.completions) * (max(map(len, self.completions), default=1) - 1)

    @property
    def saved(self) -> float:
        """The share of those that were not run; below 0 where wrong guesses took more."""
        return 1 - self.row_steps / self.stock_row_steps if self.stock_row_steps else 0.0

    @property
    def useful(self) -> float:
        """The share of the row-steps that gave a token which was kept."""
        return self._stepped / self.row_steps if self.row_steps else 1.0

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a row drew in a pass."""
        return self._stepped / self.row_passes if self.row_passes else 1.0

    @property
    def _stepped(self) -> int:
        return sum(map(len, self.completions)) - self.reads


def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    most_rows: int | None = None,
    device: Any = None,
    uniform: Uniform | None = None,
    support: Support | None = None,
    drafts: Drafts | None = None,
    again: bool = True,
) -> Decoded:
    """Complete every prompt; there is one for each completion, and equal ones are read once.

    Where memory runs out, all rows in flight are read again with what they hold so far, half as many at once. No row is
    drawn a second time: to discard rows when they grow long would favour short ones. Without ``again`` the error is
    raised: a pass that other ranks take part in cannot be repeated.

    The model needs a plain growing cache and must take positions. At most ``most_rows`` rows are in flight; None for
    all. ``uniform`` gives the numbers that pick the tokens; None makes them from one number of torch's own generator.
    Either way a row's draw does not depend on the others.

    With ``drafts`` several tokens are read in a pass where it pays. Each is picked as without them, by the row's own
    number, and the first that differs from its guess ends what is kept: equal tokens, but for the rounding of a pass
    with several columns, which may move a number across the border between two tokens.
    """
    decoding = _Decoding(model, prompts, sampling, most_rows, device, uniform, support, drafts)
    return decoding.run(again=again)


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
        support: Support | None,
        drafts: Drafts | None,
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
        self.drafts, self.unknown = drafts, 0
        self.passes = 0
        self.looked: torch.Tensor | None = None
        if drafts is not None:
            self.keys = drafts.keys(prompts)
            self.ended: list[tuple[int, list[int]]] = []

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
        self._learn()
        return self.result

    def _step(self) -> None:
        batch = self.batch = self._filled()
        self._draw(batch)
        if self.flying:
            guesses_RJ = self._guess(batch)
            close_gaps(batch)
            advance(self.model, batch, guesses_RJ)
            self.passes += 1
            self.result.row_passes += len(self.flying)
            self.result.row_steps += len(self.flying) * batch.logits.shape[1]
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
            self.result.reads += len(taken)
        assert batch is not None
        return batch

    def _draw(self, batch: Batch) -> None:
        """One token for every row, and one more for each guess that was right."""
        rows, columns, vocabulary = batch.logits.shape
        furthest = batch.reach - self.shortest + columns  # no row has more tokens after this
        places_RK = batch.drawn[:, None]
        if columns > 1:
            places_RK = places_RK + torch.arange(columns, device=batch.length.device)
        scores_RKV: torch.Tensor = self.chain(batch.seen(), batch.logits.flatten(0, 1)).view(rows, columns, vocabulary)
        if self.sampling.draw:
            if isinstance(self.uniform, Numbers):
                self.uniform.reserve(min(furthest, self.sampling.most))
            number_places_RK = places_RK
            if furthest > self.sampling.most:  # a column may be past the end
                number_places_RK = places_RK.clamp(max=self.sampling.most - 1)
            numbers_RK = self.uniform(batch.rows[:, None].expand(-1, columns), number_places_RK)
            tokens_RK = pick(scores_RKV.flatten(0, 1), numbers_RK.flatten()).view(rows, columns)
        else:
            highest_RK, tokens_RK = scores_RKV.max(dim=-1)
            tokens_RK = torch.where(highest_RK.isnan(), vocabulary, tokens_RK)
        ends_RK = self._ends(tokens_RK)
        if furthest >= self.sampling.most:
            ends_RK = ends_RK | (places_RK + 1 >= self.sampling.most)
        wrong_RK, kept_RK = tokens_RK >= vocabulary, None
        if columns > 1:
            kept_RK = _kept(tokens_RK, ends_RK, batch.drafts)
            wrong_RK = wrong_RK & kept_RK
            ended_R = (ends_RK & kept_RK).any(dim=1)
        else:
            ended_R = ends_RK.squeeze(1)
        numbers = [ended_R.sum(), wrong_RK.sum()]
        if kept_RK is not None:
            numbers += [(batch.drafts[:, 0] >= 0).sum(), self._tried(batch, kept_RK), kept_RK[:, 1:].sum()]
            numbers.append((batch.length + kept_RK.sum(dim=1)).max())
        elif self.looked is not None and len(self.looked) == rows:
            there = (self.looked >= 0).sum()
            numbers += [there, there, (self.looked == tokens_RK[:, 0]).sum()]
        ends, wrongs, *counts = torch.stack(numbers).tolist()  # the step's only wait for the device
        if wrongs:
            raise ValueError("the model's logits are NaN: no token can be drawn. Its weights or inputs are no numbers.")
        if self.support is not None:
            if kept_RK is None:
                self.support.note(batch.rows, places_RK[:, 0], scores_RKV[:, 0])
            else:
                rows_RK = batch.rows[:, None].expand(-1, columns)
                self.support.note(rows_RK[kept_RK], places_RK[kept_RK], scores_RKV[kept_RK])
        batch.add(tokens_RK, kept_RK)
        batch.reach = counts[3] if columns > 1 else batch.reach + 1
        if self.drafts is not None and counts:
            self.drafts.count(rows, *counts[:3])
            if columns > 1:
                self.result.tried += counts[1]
                self.result.right += counts[2]
        if ends:
            self._end(batch, ended_R)

    def _ends(self, tokens_RK: torch.Tensor) -> torch.Tensor:
        if len(self.sampling.stops) == 1:
            return tokens_RK == self.sampling.stops[0]
        return torch.isin(tokens_RK, self.stops)

    @staticmethod
    def _tried(batch: Batch, kept_RK: torch.Tensor) -> torch.Tensor:
        """How many guesses were put to the test: those that were right, and the first that was not."""
        return torch.minimum((batch.drafts >= 0).sum(dim=1), kept_RK.sum(dim=1)).sum()

    def _end(self, batch: Batch, ended_R: torch.Tensor) -> None:
        places = ended_R.nonzero().squeeze(1)
        ended = dict(zip(batch.rows[places].tolist(), batch.completions(places), strict=True))
        self.flying = [row for row in self.flying if row not in ended]
        for row, ids in ended.items():
            self.result.completions[row] = ids
            if self.drafts is not None:
                self.ended.append((row, ids))
                self.unknown += len(ids)
        if self.flying:
            keep(batch, (~ended_R).nonzero().squeeze(1))

    def _guess(self, batch: Batch) -> torch.Tensor | None:
        """The next tokens of each row, where it pays to read them in the same pass."""
        self.looked = None
        if self.drafts is None:
            return None
        rows = len(self.flying)
        most = self.drafts.tokens(rows, self.sampling)
        looks = not most and self.passes % EVERY == 0 and self.drafts.could_pay(rows, self.sampling)
        if not most and not looks:
            return None
        if self.unknown >= WORTH:
            self._learn()
        guesses_RJ = self.drafts.guess(batch.text, batch.length, self.keys[batch.rows])
        if looks:
            self.looked = guesses_RJ[:, 0]
            return None
        # The last token comes without a guess.
        left_R1 = self.sampling.most - 1 - batch.drawn[:, None]
        guesses_RJ = guesses_RJ[:, :most]
        guesses_RJ = torch.where(torch.arange(guesses_RJ.shape[1], device=left_R1.device) < left_R1, guesses_RJ, -1)
        longest = int((guesses_RJ >= 0).sum(dim=1).max())
        if not longest:
            self.drafts.count(rows, 0, 0, 0)
        return guesses_RJ[:, :longest] if longest else None

    def _learn(self) -> None:
        """Remember the completions that have ended."""
        if self.drafts is None or not self.ended:
            return
        ended, self.ended, self.unknown = self.ended, [], 0
        texts = [[*self.prompts[row][-max(LENGTHS) :], *ids] for row, ids in ended]
        width = max(map(len, texts))
        text_RS = torch.tensor([text + text[:1] * (width - len(text)) for text in texts], device=self.device)
        length_R = torch.tensor([len(text) for text in texts], device=self.device)
        start_R = length_R - torch.tensor([len(ids) for _, ids in ended], device=self.device)
        self.drafts.learn(text_RS, start_R, length_R, self.keys[[row for row, _ in ended]])

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


def _kept(tokens_RK: torch.Tensor, ends_RK: torch.Tensor, drafts_RJ: torch.Tensor) -> torch.Tensor:
    """Which tokens stay: up to the first that ends its row or differs from its guess."""
    goes_on_RJ = (tokens_RK[:, :-1] == drafts_RJ) & ~ends_RK[:, :-1]
    return torch.nn.functional.pad(goes_on_RJ.long().cumprod(dim=1).bool(), (1, 0), value=True)


def is_adapted(model: Any) -> bool:
    """The model carries adapters of PEFT: what draws is its base model."""
    from peft import PeftModel

    return isinstance(model, PeftModel)

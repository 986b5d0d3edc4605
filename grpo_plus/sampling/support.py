"""The tokens that top-k, top-p and min-p left to draw from, kept for every token drawn.

For a completion that is one int32 tensor, which travels with its row as an item of a list: T, W, T counts, one for each
token, then the tokens' parts behind one another. A count above 0 says how many ids follow; -1 stands for W words of 32
bits, a bit for each token of the vocabulary; 0 for the whole vocabulary, without a part. The shorter part is kept: at
most an eighth of the vocabulary's size in bytes. An empty tensor says that nothing is known of a row.
"""

from collections.abc import Sequence

import torch

from grpo_plus.sampling.sampler import Sampling

BITS, WHOLE = -1, 0
"""Counts that are none."""

_WORD = 32
_PENDING = 2**24
"""Bytes that wait on the device."""


def unknown() -> torch.Tensor:
    """A row of which nothing is known."""
    return torch.zeros(0, dtype=torch.int32)


def listed(kept: Sequence[Sequence[int] | None]) -> torch.Tensor:
    """The support of one completion, of which the ids that could be drawn are known token by token.

    One token of which they are not makes the row unknown.
    """
    if any(ids is None for ids in kept):
        return unknown()
    parts = [list(ids) for ids in kept if ids is not None]
    return torch.tensor(
        [len(parts), 0, *map(len, parts), *(token for ids in parts for token in ids)], dtype=torch.int32
    )


def truncates(sampling: Sampling) -> bool:
    """Some tokens may be left out when one is drawn."""
    return sampling.draw and (sampling.top_k > 0 or sampling.top_p < 1.0 or bool(sampling.min_p))


class SupportLog:
    """Takes down the supports of tokens as they are drawn."""

    def __init__(self) -> None:
        self._vocabulary = 0
        self._waiting = 0
        self._pending: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._places: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []
        self._parts: list[torch.Tensor] = []

    def note(self, rows: torch.Tensor, places: torch.Tensor, scores_RV: torch.Tensor) -> None:
        """Scores as the warpers left them, -inf outside: those of one place of one completion each.

        A place that is noted again was drawn again. What is kept here are bits, without a wait for the device.
        """
        self._vocabulary = scores_RV.shape[1]
        bits_RW = _packed(scores_RV != float("-inf"))
        self._pending.append((rows, places, bits_RW))
        self._waiting += bits_RW.nbytes
        if self._waiting >= _PENDING:
            self._settle()

    def _settle(self) -> None:
        """Move what is pending to the CPU, each part in its shorter form."""
        rows, places, bits_NW = (torch.cat(column) for column in zip(*self._pending, strict=True))
        self._pending, self._waiting = [], 0
        kept_NV = _unpacked(bits_NW)[:, : self._vocabulary]
        counts_N = kept_NV.sum(1)
        counts_N = torch.where(counts_N > bits_NW.shape[1], BITS, counts_N)
        counts_N = torch.where(kept_NV.all(1), WHOLE, counts_N)
        ids = (kept_NV & (counts_N > 0)[:, None]).nonzero()[:, 1].int()
        sizes_N = _sizes(counts_N, bits_NW.shape[1])
        is_bits = (counts_N == BITS).repeat_interleave(sizes_N)
        part = torch.empty(len(is_bits), dtype=torch.int32, device=ids.device)
        part[is_bits] = bits_NW[counts_N == BITS].reshape(-1)
        part[~is_bits] = ids
        self._places.append(torch.stack([rows, places]).long().cpu())
        self._counts.append(counts_N.int().cpu())
        self._parts.append(part.cpu())

    def rows(self, lengths: Sequence[int]) -> list[torch.Tensor]:
        """The supports of all completions, which have so many tokens; a row with a gap is unknown."""
        if self._pending:
            self._settle()
        if not self._places or not lengths:
            return [unknown() for _ in lengths]
        words = -(-self._vocabulary // _WORD)
        rows, places = torch.cat(self._places, dim=1)
        counts, parts = torch.cat(self._counts), torch.cat(self._parts)
        sizes = _sizes(counts, words)
        first = sizes.cumsum(0) - sizes
        width = max(int(places.max()) + 1, *lengths)
        keys, order = (rows * width + places).sort(stable=True)
        latest = keys != torch.cat([keys[1:], torch.tensor([-1])])
        last = torch.full((len(lengths), width), -1)
        last.view(-1)[keys[latest]] = order[latest]
        found = []
        for row, length in enumerate(lengths):
            chosen = last[row, :length]
            if length == 0 or bool((chosen < 0).any()):
                found.append(unknown())
                continue
            head = torch.tensor([length, words], dtype=torch.int32)
            found.append(torch.cat([head, counts[chosen], _segments(parts, first[chosen], sizes[chosen])]))
        return found


def fitting(rows: Sequence[torch.Tensor], lengths: Sequence[int]) -> list[torch.Tensor]:
    """The rows; those that hold another number of tokens than their completion are unknown. 0 is one masked out."""
    return [
        row if not len(row) or length in {0, int(row[0])} else unknown()
        for row, length in zip(rows, lengths, strict=True)
    ]


class Support:
    """The supports of the rows of a batch, (B, C) places of completion tokens, to score within.

    A place beyond what is known of its row has the whole vocabulary.
    """

    def __init__(self, rows: Sequence[torch.Tensor], width: int, device: torch.device) -> None:
        counts_BC = torch.full((len(rows), width), WHOLE, dtype=torch.int32)
        first_BC = torch.zeros(len(rows), width, dtype=torch.long)
        parts, total, self._words = [], 0, 0
        for row, told in enumerate(rows):
            if len(told) == 0:
                continue
            length, words = told[:2].tolist()
            counts, part = told[2 : 2 + length].cpu(), told[2 + length :].cpu()
            sizes = _sizes(counts, words)
            shown = min(length, width)
            counts_BC[row, :shown] = counts[:shown]
            first_BC[row, :shown] = (total + sizes.cumsum(0) - sizes)[:shown]
            parts.append(part)
            total, self._words = total + len(part), words
        self.width = width
        self._counts = counts_BC.reshape(-1).to(device)
        self._first = first_BC.reshape(-1).to(device)
        self._parts = (torch.cat(parts) if parts else unknown()).to(device)

    def allowed(self, places_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """(N, V) bool: the tokens that could be drawn at these places, which count through (B, C)."""
        counts_N, first_N = self._counts[places_N].long(), self._first[places_N]
        allowed_NV = (counts_N == WHOLE)[:, None].repeat(1, vocabulary)
        sizes_N = counts_N.clamp(min=0)
        token = torch.arange(len(counts_N), device=counts_N.device).repeat_interleave(sizes_N)
        allowed_NV[token, _segments(self._parts, first_N, sizes_N).long()] = True
        wide = (counts_N == BITS).nonzero()[:, 0]
        if len(wide):
            index = first_N[wide][:, None] + torch.arange(self._words, device=first_N.device)
            allowed_NV[wide] = _unpacked(self._parts[index])[:, :vocabulary]
        return allowed_NV


def _sizes(counts: torch.Tensor, words: int) -> torch.Tensor:
    """Words of each part."""
    return torch.where(counts == BITS, words, counts.long())


def _segments(parts: torch.Tensor, first_N: torch.Tensor, sizes_N: torch.Tensor) -> torch.Tensor:
    """Stretches of ``parts`` behind one another."""
    before_N = sizes_N.cumsum(0) - sizes_N
    shift = (first_N - before_N).repeat_interleave(sizes_N)
    return parts[shift + torch.arange(len(shift), device=shift.device)]


def _packed(kept_RV: torch.Tensor) -> torch.Tensor:
    """A bit for each token, (R, W) int32."""
    words = -(-kept_RV.shape[1] // _WORD)
    wide = torch.nn.functional.pad(kept_RV, (0, words * _WORD - kept_RV.shape[1])).view(torch.uint8)
    bits = wide.new_zeros(len(kept_RV), words * 4)
    for place in range(8):
        bits |= wide[:, place::8] << place
    return bits.view(torch.int32)


def _unpacked(words_NW: torch.Tensor) -> torch.Tensor:
    """The bits of words, (N, 32 W) bool."""
    shifts = torch.arange(8, device=words_NW.device, dtype=torch.uint8)
    bits = (words_NW.contiguous().view(torch.uint8)[..., None] >> shifts) & 1
    return bits.bool().reshape(len(words_NW), words_NW.shape[1] * _WORD)

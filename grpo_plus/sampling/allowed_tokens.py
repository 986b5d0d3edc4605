"""The tokens that top-k, top-p and min-p allow at each position of a completion.

Each completion has one int32 tensor: T, W, T counts (one for each token), then the parts of all tokens. A count above 0
is the number of ids in the part; -1 means W words of 32 bits, one bit for each token of the vocabulary; 0 means the
full vocabulary, without a part. The shorter form is stored: at most an eighth of the vocabulary's size in bytes. An
empty tensor marks an unknown row.
"""

from collections.abc import Sequence

import torch

from grpo_plus.sampling.sampler import Sampling

BITS, FULL = -1, 0
"""Special values of a count."""

_WORD = 32
_PENDING = 2**24
"""Most bytes buffered on the device."""


def unknown() -> torch.Tensor:
    """Return the tensor of an unknown row."""
    return torch.zeros(0, dtype=torch.int32)


def from_ids(ids_T: Sequence[Sequence[int] | None]) -> torch.Tensor:
    """Return the row of a completion from the allowed ids of each token; unknown if one of them is None."""
    if any(ids is None for ids in ids_T):
        return unknown()
    parts = [list(ids) for ids in ids_T if ids is not None]
    return torch.tensor(
        [len(parts), 0, *map(len, parts), *(token for ids in parts for token in ids)], dtype=torch.int32
    )


def truncates(sampling: Sampling) -> bool:
    """Return True if sampling may exclude tokens."""
    return sampling.draw and (sampling.top_k > 0 or sampling.top_p < 1.0 or bool(sampling.min_p))


class AllowedTokensLog:
    """Records the allowed tokens while completions are sampled."""

    def __init__(self) -> None:
        self._vocabulary = 0
        self._pending_bytes = 0
        self._pending: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._places: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []
        self._parts: list[torch.Tensor] = []

    def note(self, rows: torch.Tensor, places: torch.Tensor, scores_RV: torch.Tensor) -> None:
        """Record one position of each row from the warped scores, -inf for excluded tokens.

        The latest record of a position counts. Bits are stored without a synchronization with the device.
        """
        self._vocabulary = scores_RV.shape[1]
        bits_RW = _packed(scores_RV != float("-inf"))
        self._pending.append((rows, places, bits_RW))
        self._pending_bytes += bits_RW.nbytes
        if self._pending_bytes >= _PENDING:
            self._settle()

    def _settle(self) -> None:
        """Move pending records to the CPU, each part in its shorter form."""
        rows, places, bits_NW = (torch.cat(column) for column in zip(*self._pending, strict=True))
        self._pending, self._pending_bytes = [], 0
        allowed_NV = _unpacked(bits_NW)[:, : self._vocabulary]
        counts_N = allowed_NV.sum(1)
        counts_N = torch.where(counts_N > bits_NW.shape[1], BITS, counts_N)
        counts_N = torch.where(allowed_NV.all(1), FULL, counts_N)
        ids = (allowed_NV & (counts_N > 0)[:, None]).nonzero()[:, 1].int()
        sizes_N = _sizes(counts_N, bits_NW.shape[1])
        is_bits = (counts_N == BITS).repeat_interleave(sizes_N)
        part = torch.empty(len(is_bits), dtype=torch.int32, device=ids.device)
        part[is_bits] = bits_NW[counts_N == BITS].reshape(-1)
        part[~is_bits] = ids
        self._places.append(torch.stack([rows, places]).long().cpu())
        self._counts.append(counts_N.int().cpu())
        self._parts.append(part.cpu())

    def rows(self, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Return the rows of completions with these lengths; a row with a gap is unknown."""
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
        result = []
        for row, length in enumerate(lengths):
            chosen = last[row, :length]
            if length == 0 or bool((chosen < 0).any()):
                result.append(unknown())
                continue
            head = torch.tensor([length, words], dtype=torch.int32)
            result.append(torch.cat([head, counts[chosen], _segments(parts, first[chosen], sizes[chosen])]))
        return result


def fitting(rows: Sequence[torch.Tensor], lengths: Sequence[int]) -> list[torch.Tensor]:
    """Return the rows; one whose token count differs from its length becomes unknown. Length 0 means masked."""
    return [
        row if not len(row) or length in {0, int(row[0])} else unknown()
        for row, length in zip(rows, lengths, strict=True)
    ]


class AllowedTokens:
    """The allowed tokens at the (B, C) completion positions of a batch.

    Positions past the end of a row allow the full vocabulary.
    """

    def __init__(self, rows: Sequence[torch.Tensor], width: int, device: torch.device) -> None:
        counts_BC = torch.full((len(rows), width), FULL, dtype=torch.int32)
        first_BC = torch.zeros(len(rows), width, dtype=torch.long)
        parts, total, self._words = [], 0, 0
        for row, record in enumerate(rows):
            if len(record) == 0:
                continue
            length, words = record[:2].tolist()
            counts, part = record[2 : 2 + length].cpu(), record[2 + length :].cpu()
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

    def mask(self, places_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """Return the (N, V) bool mask of allowed tokens at flat (B, C) positions."""
        counts_N, first_N = self._counts[places_N].long(), self._first[places_N]
        allowed_NV = (counts_N == FULL)[:, None].repeat(1, vocabulary)
        sizes_N = counts_N.clamp(min=0)
        token = torch.arange(len(counts_N), device=counts_N.device).repeat_interleave(sizes_N)
        allowed_NV[token, _segments(self._parts, first_N, sizes_N).long()] = True
        wide = (counts_N == BITS).nonzero()[:, 0]
        if len(wide):
            index = first_N[wide][:, None] + torch.arange(self._words, device=first_N.device)
            allowed_NV[wide] = _unpacked(self._parts[index])[:, :vocabulary]
        return allowed_NV


def _sizes(counts: torch.Tensor, words: int) -> torch.Tensor:
    return torch.where(counts == BITS, words, counts.long())


def _segments(parts: torch.Tensor, first_N: torch.Tensor, sizes_N: torch.Tensor) -> torch.Tensor:
    """Return the concatenated slices of ``parts`` with these starts and sizes."""
    before_N = sizes_N.cumsum(0) - sizes_N
    shift = (first_N - before_N).repeat_interleave(sizes_N)
    return parts[shift + torch.arange(len(shift), device=shift.device)]


def _packed(allowed_RV: torch.Tensor) -> torch.Tensor:
    """Return one bit for each token, (R, W) int32."""
    words = -(-allowed_RV.shape[1] // _WORD)
    wide = torch.nn.functional.pad(allowed_RV, (0, words * _WORD - allowed_RV.shape[1])).view(torch.uint8)
    bits = wide.new_zeros(len(allowed_RV), words * 4)
    for place in range(8):
        bits |= wide[:, place::8] << place
    return bits.view(torch.int32)


def _unpacked(words_NW: torch.Tensor) -> torch.Tensor:
    """Return the bits of words, (N, 32 W) bool."""
    shifts = torch.arange(8, device=words_NW.device, dtype=torch.uint8)
    bits = (words_NW.contiguous().view(torch.uint8)[..., None] >> shifts) & 1
    return bits.bool().reshape(len(words_NW), words_NW.shape[1] * _WORD)

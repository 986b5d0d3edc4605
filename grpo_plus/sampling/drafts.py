"""Guesses of the next tokens, from what followed the same tokens before: in other completions, and in the row itself.

A table of hashes maps the last tokens of a row to those that came after them last time; the longest match counts, and
one of the same prompt before others. Guesses may be wrong, and collisions make some so: whoever reads them picks
every token as if there were no guess. All is counts of tokens and none is time, so that a resumed run, with the table
and the counts of its checkpoint, makes the same guesses.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import torch

from grpo_plus.sampling.sampler import Sampling

MOST = 7
"""Tokens of a guess, at most."""
LENGTHS = (6, 4, 3, 2)
"""How many last tokens are looked up, longest first."""
SLOTS = 1 << 16
"""Entries of the table, and eight times as many for a large vocabulary; a new one takes the place of an old one."""
PAYS = 1.15
"""Tokens a pass over its cost from which guesses are made."""
EVERY = 16
"""Passes without guesses between two looks at whether they would have been right."""
_MIX = -0x61C8864680B583EB
_WEIGHTS = [(0x2545F4914F6CDD1D * (2 * place + 3) ^ (place * 0x9E3779B97F4A7C15)) | 1 for place in range(max(LENGTHS))]


class Drafts:
    """What is guessed from, and how often guesses were right."""

    def __init__(self, model: Any, device: Any) -> None:
        weights = sum(parameter.numel() for parameter in model.parameters())
        config = model.config.get_text_config()
        self._vocabulary = int(config.vocab_size)
        self._cost = Cost(weights, int(config.num_hidden_layers), self._vocabulary, torch.device(device or "cpu"))
        self._device = device
        signed = [weight - (1 << 64) if weight >> 63 else weight for weight in (w % (1 << 64) for w in _WEIGHTS)]
        self._weights = torch.tensor(signed, device=device)
        self._back = torch.arange(max(LENGTHS), device=device)
        self._lengths = torch.tensor([length - 1 for length in LENGTHS], device=device)
        slots = SLOTS if self._vocabulary < 4096 else 8 * SLOTS
        self._table = torch.zeros(slots, 1 + MOST, dtype=torch.int32, device=device)
        self.counts = {"rows": 0, "guessed": 0, "tried": 0, "right": 0}

    def keys(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """A number for each prompt, equal for equal ones."""
        known = {prompt: crc32(repr(prompt).encode()) for prompt in {tuple(prompt) for prompt in prompts}}
        return torch.tensor([known[tuple(prompt)] for prompt in prompts], device=self._device)

    def _places(self, context_ML: torch.Tensor, key_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots and tags of each context: all lengths, of the same prompt and of any."""
        any_MO = ((context_ML + 1) * self._weights).cumsum(dim=1)[:, self._lengths]
        hash_MO = torch.stack([any_MO + (key_M[:, None] + 1) * _MIX, any_MO], dim=2).flatten(1)
        hash_MO = (hash_MO ^ (hash_MO >> 29)) * _MIX
        hash_MO = hash_MO ^ (hash_MO >> 32)
        return hash_MO & (len(self._table) - 1), ((hash_MO >> 20) & 0x3FFFFFFF).int() | 1

    def guess(self, text_RS: torch.Tensor, length_R: torch.Tensor, key_R: torch.Tensor) -> torch.Tensor:
        """The next tokens of rows, (R, MOST); -1 behind the end of a guess."""
        context_RL = text_RS.gather(1, (length_R[:, None] - 1 - self._back).clamp(min=0))
        slot_RO, tag_RO = self._places(context_RL, key_R)
        hit_RO = self._table[:, 0][slot_RO] == tag_RO
        first_R1 = hit_RO.int().argmax(dim=1, keepdim=True)
        guess_RJ = self._table[slot_RO.gather(1, first_R1).squeeze(1), 1:].long()
        return torch.where(hit_RO.gather(1, first_R1), guess_RJ, -1)

    def learn(self, text_RS: torch.Tensor, start_R: torch.Tensor, length_R: torch.Tensor, key_R: torch.Tensor) -> None:
        """Remember what stands in rows from ``start_R`` on."""
        width = text_RS.shape[1]
        column_S = torch.arange(width, device=text_RS.device)
        row_M, place_M = ((column_S >= start_R[:, None]) & (column_S < length_R[:, None])).nonzero(as_tuple=True)
        if not len(row_M):
            return
        context_ML = text_RS[row_M[:, None], (place_M[:, None] - 1 - self._back).clamp(min=0)]
        ahead_MJ = place_M[:, None] + torch.arange(MOST, device=text_RS.device)
        next_MJ = text_RS[row_M[:, None], ahead_MJ.clamp(max=width - 1)]
        next_MJ = torch.where(ahead_MJ < length_R[row_M][:, None], next_MJ, -1)
        slot_MO, tag_MO = self._places(context_ML, key_R[row_M])
        slot_E, columns = slot_MO.flatten(), slot_MO.shape[1]
        order_E = torch.arange(len(slot_E), device=slot_E.device)
        last = torch.zeros(len(self._table), dtype=torch.long, device=slot_E.device)
        last.scatter_reduce_(0, slot_E, order_E, "amax")  # of entries for one slot the last, on every device
        kept_N = (last[slot_E] == order_E).nonzero().squeeze(1)
        entry_NJ = torch.cat([tag_MO.reshape(-1, 1)[kept_N], next_MJ.int()[kept_N // columns]], dim=1)
        self._table[slot_E[kept_N]] = entry_NJ

    def count(self, rows: int, guessed: int, tried: int, right: int) -> None:
        """Note rows, those with a guess, tokens of guesses that were put to the test, and those that were right."""
        for name, number in zip(self.counts, (rows, guessed, tried, right), strict=True):
            self.counts[name] += number
        if self.counts["rows"] > 4096:
            self.counts = {name: number // 2 for name, number in self.counts.items()}

    def tokens(self, rows: int, sampling: Sampling) -> int:
        """How many tokens it pays to guess with as many rows in flight."""
        share = self.counts["guessed"] / max(self.counts["rows"], 1)
        right = self.counts["right"] / max(self.counts["tried"], 1)
        return self._cost.best(rows, share, right, sampling)

    def could_pay(self, rows: int, sampling: Sampling) -> bool:
        """Guesses that are nearly all right would pay with as many rows in flight."""
        return self._cost.best(rows, 1.0, 0.95, sampling) > 0

    def state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Counts and table, to go on from."""
        used = (self._table[:, 0] != 0).nonzero().squeeze(1)
        return dict(self.counts), {"slots": used.int().cpu(), "entries": self._table[used].cpu()}

    def load(self, counts: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state; one of another vocabulary is left alone."""
        slots, entries = tensors["slots"].long(), tensors["entries"]
        if len(slots) and (slots.max() >= len(self._table) or entries[:, 1:].max() >= self._vocabulary):
            return
        self.counts = {name: int(counts[name]) for name in self.counts}
        self._table.zero_()
        self._table[slots.to(self._table.device)] = entries.to(self._table.device)


class Cost:
    """A rough cost of a pass, from the shape of model and batch: clocks would decide tokens otherwise on every run.

    Seconds on one CPU core, or on a current GPU; only their ratios matter.
    """

    def __init__(self, weights: int, layers: int, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._cpu = device.type == "cpu"
        self._known = lru_cache(maxsize=256)(self._best)  # asked in every pass, and mostly the same
        if self._cpu:
            self._pass, self._token = 1e-4 + 2.2e-4 * layers + weights / 3e9, weights / 4e10 + 3e-6 * layers
            self._guess, self._row = 5e-4, 1.5e-5
        else:
            self._pass, self._token = 2.5e-4 * layers + weights / 1e12, weights / 1e14 + 1e-8 * layers
            self._guess, self._row = 3e-4, 2e-6

    def best(self, rows: int, share: float, right: float, sampling: Sampling) -> int:
        """The guess with most tokens for the time; 0 where none pays."""
        warped = sampling.draw and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p is not None)
        return self._known(rows, share, right, warped)

    def _best(self, rows: int, share: float, right: float, warped: bool) -> int:
        token = self._token + self._vocabulary * (0.0 if not self._cpu else 6e-8 if warped else 5e-9)
        plain = self._pass + rows * token * 1.5
        best, gain, tokens = 0, PAYS, 1.0
        for guess in range(1, MOST + 1):
            tokens += share * right**guess
            found = tokens * plain / (self._pass + self._guess + rows * (token * (guess + 1.5) + self._row))
            if found > gain:
                best, gain = guess, found
        return best

"""A trunk with a head as a reward model: scores of sampled ids, and updates by pairs or by labels of steps.

A completion is read where `AutoModelForSequenceClassification` would read it: at its last token that is not padding.
Passes go through the engine, so that completions of one prompt read it once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_plus.heads.adamw import OwnAdamW
from grpo_plus.heads.passes import Passes
from grpo_plus.heads.scalar import Stored, load_parts, tensors_of
from grpo_plus.reward_model.history import Example
from grpo_plus.reward_model.losses import bradley_terry, process_losses
from grpo_plus.reward_model.pairs import Comparison, Ids

Row = tuple[Ids, Ids]
"""A prompt and a completion."""


class Scorer:
    """Scores and updates; a pass has ``rows`` rows at most."""

    def __init__(self, passes: Passes, optimizer: OwnAdamW, *, pad: int, rows: int, device: torch.device) -> None:
        self.passes = passes
        self.optimizer = optimizer
        self.pad = pad
        self._rows = rows
        self._device = device

    @torch.no_grad()
    def outcomes(self, rows: Sequence[Row]) -> Tensor:
        """A score for each completion, (B,), without a gradient."""
        with self.passes.trunk.active():
            return self._outcomes(rows) if rows else torch.zeros(0, device=self._device)

    @torch.no_grad()
    def steps(self, rows: Sequence[Row], ends: Sequence[Ids]) -> list[Tensor]:
        """The score of each step, read at its last token, for each completion; without a gradient."""
        if not rows:
            return []
        with self.passes.trunk.active():
            values_BT = self._values(rows)
        return [values_BT[row, [end + 1 for end in places]] for row, places in enumerate(ends)]

    def update(self, examples: Sequence[Example], count: int, ranks: int) -> Tensor:
        """One step of the optimizer; the summed loss of this rank's examples.

        ``count`` is how many losses there are on all ranks: pairs, or labels. Ranks call it together.
        """
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        with self.passes.trunk.active(), torch.enable_grad():
            size = self._examples_of_a_pass(examples)
            for start in range(0, len(examples), size):
                loss = self.loss(examples[start : start + size])
                (loss * ranks / max(1, count)).backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            self.optimizer.step()
        return total

    def loss(self, examples: Sequence[Example]) -> Tensor:
        """The summed loss of pairs or of labels; each text of several pairs is read once."""
        if isinstance(examples[0], Comparison):
            rows: dict[Row, int] = {}
            sides = [
                [rows.setdefault((one.prompt, text), len(rows)) for text in (one.chosen, one.rejected)]
                for one in examples
                if isinstance(one, Comparison)
            ]
            scores = self._outcomes(list(rows))
            chosen, rejected = torch.tensor(sides, device=self._device).T
            return bradley_terry(scores[chosen], scores[rejected]).sum()
        labelled = [one for one in examples if not isinstance(one, Comparison)]
        values_BT = self._values([(one.prompt, one.completion) for one in labelled])
        labels_BT = torch.full_like(values_BT, float("nan"))
        for row, one in enumerate(labelled):
            labels_BT[row, [end + 1 for end in one.ends]] = torch.tensor(one.labels, device=self._device).float()
        return process_losses(values_BT, labels_BT).sum()

    def tensors(self, *, moments: bool = True) -> dict[str, Tensor]:
        """The weights that are trained, and the moments of the optimizer unless they are not asked for."""
        parts = self._parts()
        if not moments:
            del parts["adam"]
        return tensors_of(parts)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these; a ValueError says why they do not fit."""
        load_parts(self._parts(), tensors)

    def _parts(self) -> dict[str, Stored]:
        return {"trunk": self.passes.trunk, "head": self.passes.head, "adam": self.optimizer}

    def _examples_of_a_pass(self, examples: Sequence[Example]) -> int:
        sides = 2 if any(isinstance(one, Comparison) for one in examples[:1]) else 1
        return max(1, self._rows // sides)

    def _outcomes(self, rows: Sequence[Row]) -> Tensor:
        values_BT = self._values(rows)
        at_B = [last_read(completion, self.pad) for _, completion in rows]
        return values_BT[torch.arange(len(rows), device=self._device), torch.tensor(at_B, device=self._device)]

    def _values(self, rows: Sequence[Row]) -> Tensor:
        """(B, T + 1): what the head reads after so many tokens of the completion."""
        ids_BS, mask_BS, width = batch_of(rows, self.pad, self._device)
        return self.passes.values(ids_BS, mask_BS, width, batch_size=self._rows)


def last_read(completion: Ids, pad: int) -> int:
    """After how many tokens a completion is read: padding at its end is passed over.

    >>> last_read((5, 6, 0), 0), last_read((), 0)
    (2, 0)
    """
    count = len(completion)
    while count and completion[count - 1] == pad:
        count -= 1
    return count


def batch_of(rows: Sequence[Row], pad: int, device: Any = "cpu") -> tuple[Tensor, Tensor, int]:
    """Ids and mask, prompts padded left and completions right, and the width of the completions.

    Behind each completion stands one token more, of which only the place counts: the passes of a head read the hidden
    state before a token, and the last one of a completion must be read, too.
    """
    before, width = max(len(prompt) for prompt, _ in rows), max(len(text) for _, text in rows) + 1
    ids_BS = torch.full((len(rows), before + width), pad)
    mask_BS = torch.zeros((len(rows), before + width), dtype=torch.long)
    for row, (prompt, text) in enumerate(rows):
        there = slice(before - len(prompt), before + len(text) + 1)
        ids_BS[row, there] = torch.tensor([*prompt, *text, pad])
        mask_BS[row, there] = 1
    return ids_BS.to(device), mask_BS.to(device), width

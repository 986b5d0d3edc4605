"""A trial of a model: short rows, run in several ways, must have the same log-probabilities.

It confirms the config with the model's own code, weights, adapters and attention kernels, in one pass of each kind
without gradient.

Positions are relative if neither padding on the left, which TRL counts, nor a late start changes a result. Learned
positions, positions that scale attention and rotations of keys before a norm are not relative: every pass of such a
model needs TRL's padding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from grpo_plus.engine.branches import branches_of
from grpo_plus.engine.dropout import unpacked, without_dropout
from grpo_plus.engine.forward import Autocast, Head, score_labels, score_packed
from grpo_plus.engine.pack import IGNORED, lay_out
from grpo_plus.engine.rows import read_rows
from grpo_plus.engine.trees import grow
from grpo_plus.memory.errors import is_out_of_memory

_PROMPT, _LENGTHS = 7, (6, 4, 5)
_TURN = 2  # tokens that the first two completions begin with
LENGTH = _PROMPT + max(_LENGTHS)
"""Tokens of the longest row of the trial: a narrower attention window shows as a mismatch."""
_PADDING, _FAR = 16, 2**15

_EXACT, _ROTATED = 1e-5, 1e-2
"""Rounding in float32, in standard deviations of the log-probabilities: of short rows, and of large angles."""
_ROUNDING = 1.5
"""Allowed effect of a position, relative to the effect of rounding the output of every layer once more."""


class PackingTrial:
    """Three rows with a common prompt on a model. Methods return the reason against a treatment, or None.

    Rounding moves single tokens, most if it selects another expert; a position moves all, a wrong mask some of them.
    So positions are judged by the median, packing by the mean.
    """

    def __init__(self, model: Any, vocabulary: int, device: torch.device, autocast: Autocast, head: Head) -> None:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, vocabulary, (len(_LENGTHS), _PADDING + LENGTH), generator=generator)
        prompt = slice(_PADDING, _PADDING + _PROMPT)
        ids[:, prompt] = ids[0, prompt]
        ids[1, prompt.stop : prompt.stop + _TURN] = ids[0, prompt.stop : prompt.stop + _TURN]
        mask = torch.ones_like(ids)
        for row, length in enumerate(_LENGTHS):
            mask[row, prompt.stop + length :] = 0
        rows = read_rows(ids[:, _PADDING:], mask[:, _PADDING:], max(_LENGTHS))
        assert rows is not None
        self._model, self._autocast, self._head = model, autocast, head
        self._rows, self._ids, self._real = rows, ids.to(device), mask.bool().to(device)
        self._dtypes: set[torch.dtype] = {torch.float32}

    def positions(self, *, explicit: bool, limit: int | None) -> str | None:
        """Return why positions below the model's ``limit`` are not relative; ``explicit`` ones may start late."""
        room = max(min(limit or _FAR, _FAR) - LENGTH, 1)
        left = min(room, _PADDING)
        moves = partial(self._judge, torch.median)
        if padded := moves(partial(self._plain, left), _EXACT):
            return f"positions are not relative (padding of {left} columns on the left {padded})"
        if not explicit or moves(partial(self._plain, first=left), _EXACT):
            return None  # positions are counted without padding
        far = moves(partial(self._plain, first=room), _ROTATED)
        return far and f"positions are not relative (a start at position {room} {far})"

    def packing(self, *, attention: str, sharing: bool, joining: bool) -> str | None:
        """Return the reason why packing is not exact.

        With ``sharing`` rows share their prompt, and two of them more; with ``joining`` all form one row.
        """
        every = range(len(_LENGTHS))
        trees = grow(self._rows, every, None, 1.0) if sharing else grow(self._rows, every, 1)
        packed = lay_out(trees, self._rows, self._ids.device, joined=joining)
        if joining and sharing:
            packed = replace(packed, branches=branches_of(trees, packed.input_ids.device))

        def score() -> Tensor:
            logps = score_packed(self._model, packed, self._autocast, attention=attention, head=self._head)[0].float()
            return torch.zeros_like(self._truth).view(-1).index_copy(0, packed.target, logps).view_as(self._truth)

        off = self._judge(torch.mean, score, self._rounding**0.5)
        return off and f"a trial on three rows, when packed, {off}"

    def _plain(self, left: int = 0, *, first: int = 0) -> Tensor:
        """Return the log-probabilities of all completions as in TRL's passes, zero after their ends."""
        ids = self._ids[:, _PADDING - left :]
        labels = torch.where(self._real, self._ids, IGNORED)[:, _PADDING - left + 1 :].clone()
        labels[:, : left + _PROMPT - 1] = IGNORED
        mask = (torch.arange(ids.shape[1], device=ids.device) >= left).long().expand_as(ids)
        inputs = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1]}
        if first:
            inputs["position_ids"] = mask[:, :-1].cumsum(1) - 1 + first
        return score_labels(self._model, inputs, labels, self._autocast, self._head)[0][:, left + _PROMPT - 1 :].float()

    def _run(self, score: Callable[[], Tensor], noise: float = 0.0) -> Tensor:
        with torch.no_grad(), without_dropout(self._model, unpacked), scaled(self._model, noise) as dtypes:
            scores = score()
        self._dtypes |= dtypes
        return scores

    @cached_property
    def _truth(self) -> Tensor:
        return self._run(self._plain)

    @property
    def _rounding(self) -> float:
        """The relative rounding error of layers: of sums in float32, of TF32 products, or of their dtypes."""
        assert self._truth.numel()  # shows the dtypes
        sums = 2**-20 if torch.get_float32_matmul_precision() == "highest" else 2**-8
        return max(sums, *(torch.finfo(dtype).eps for dtype in self._dtypes))

    @cached_property
    def _noise(self) -> float:
        return float(self._difference(self._run(self._plain, self._rounding)).median())

    def _judge(self, average: Callable[[Tensor], Tensor], score: Callable[[], Tensor], exact: float) -> str | None:
        """Return the effect of a different scoring as a clause without subject; None if rounding explains it."""
        try:
            allowed = max(exact, _ROUNDING * (self._noise or self._rounding**0.5))  # compiled layers may run no hooks
            size = float(average(self._difference(self._run(score))))
        except Exception as error:
            if is_out_of_memory(error):  # not a property of the model
                raise
            return f"failed with {type(error).__name__}: {error}"
        # false for NaN
        return None if size <= allowed else f"moved log-probabilities by {size:.2g} of their spread"

    def _difference(self, scores: Tensor) -> Tensor:
        """Return the differences of all scored tokens relative to their spread, which is 0 for a head of zeros."""
        scored = self._real[:, _PADDING + _PROMPT :]
        return ((scores - self._truth)[scored] / self._truth[scored].std().clamp(min=1e-30)).abs()


@contextmanager
def scaled(model: torch.nn.Module, noise: float = 0.0) -> Iterator[set[torch.dtype]]:
    """Scale each output channel of all layers with weights, and each number by up to 1 ± ``noise``; yields the dtypes.

    The ones of a new norm would hide its position after a rotation. Autocast and FSDP2 compute in their own dtypes.
    """
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}

    def scale(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if not (isinstance(output, Tensor) and output.is_floating_point() and output.dim()):
            return output
        dtypes.add(output.dtype)
        generator = torch.Generator(output.device).manual_seed(output.shape[-1])
        make = partial(torch.rand, generator=generator, device=output.device)
        output = output * (1 + make(output.shape[-1])).div(2).to(output.dtype)
        return output * (1 + noise * (2 * make(output.shape) - 1)).to(output.dtype) if noise else output

    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(scale) for layer in layers]
    try:
        yield dtypes
    finally:
        for hook in hooks:
            hook.remove()

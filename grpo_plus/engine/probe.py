"""A model tried out before it is trusted: short rows, run in several ways, must give the same log-probabilities.

The config says what a model should do; this shows that it does, with its own code, weights, adapters and attention
kernels. One pass of each kind, without gradient.

Positions are relative where neither padding on the left, which TRL counts as positions, nor a far start changes a
result. They are not where they are learned, where keys are normalised after their rotation, or where a position scales
attention. Every pass of such a model needs TRL's padding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_plus.engine.branches import in_one_row
from grpo_plus.engine.forward import Autocast, Head, score_labels, score_packed
from grpo_plus.engine.pack import IGNORED, lay_out
from grpo_plus.engine.rows import read_rows
from grpo_plus.engine.trees import grow
from grpo_plus.memory.errors import is_out_of_memory

_PROMPT, _LENGTHS = 7, (6, 4, 5)
_TURN = 2  # tokens that the first two completions begin with
LENGTH = _PROMPT + max(_LENGTHS)
"""Tokens of the longest row that is tried: an attention window narrower than this shows as a mismatch."""
_PADDING = 16
_FAR = 2**15

_EXACT, _ROTATED = 1e-5, 2e-3
"""Rounding in float32, in units of the log-probabilities' standard deviation: of short rows, and of large angles."""
_ROUNDING = 1.5
"""Allowed effect of a position, in units of the effect of rounding the output of every layer once more."""


Measure = Callable[[Tensor], tuple[float, float]]
"""The size of some differences, in units of the spread, and the largest that rounding explains."""


class Trial:
    """Three rows with a common prompt on a model. A method returns the reason against a treatment, or None.

    Rounding moves single tokens, most of all where it makes another choice of experts; a position moves all of them,
    and a wrong mask some. So the median judges positions, and the mean judges packing. Channels are scaled meanwhile,
    as the ones of a new norm would hide its place behind a rotation.
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
        self._model, self._device, self._autocast, self._head = model, device, autocast, head
        self._rows, self._ids, self._real = rows, ids.to(device), mask.to(device)
        self._truth = self._noise = torch.empty(0)
        self._rounding = 0.0

    def positions(self, *, taken: bool, limit: int | None) -> str | None:
        """Why positions below the model's ``limit`` are not relative; a late start is tried if they are ``taken``."""
        room = max(min(limit or _FAR, _FAR) - LENGTH, 1)
        left = min(room, _PADDING)
        padded = self._judge(partial(self._plain, left, 0), self._moves(_EXACT))
        if padded is not None:
            return f"positions are not relative (padding of {left} columns on the left {padded})"
        if not taken or self._judge(partial(self._plain, 0, left), self._moves(_EXACT)) is not None:
            return None  # positions are counted without padding
        far = self._judge(partial(self._plain, 0, room), self._moves(_ROTATED))
        return far and f"positions are not relative (a start at position {room} {far})"

    def packing(self, *, attention: str, sharing: bool, joining: bool) -> str | None:
        """Why packing is not exact.

        With ``sharing`` rows are to share their prompt, and two of them more; with ``joining`` to stand behind one
        another in one row.
        """
        every = range(len(_LENGTHS))
        trees = grow(self._rows, every, None, 1.0) if sharing else grow(self._rows, every, 1)
        packed = lay_out(trees, self._rows, self._device)
        packed = in_one_row(packed, trees, branching=sharing) if joining else packed

        def score() -> Tensor:
            found = score_packed(self._model, packed, self._autocast, attention=attention, head=self._head)[0].float()
            return torch.zeros_like(self._truth).view(-1).index_copy(0, packed.target, found).view_as(self._truth)

        off = self._judge(score, lambda difference: (float(difference.mean()), self._rounding**0.5))
        return off and f"a trial on three rows, when packed, {off}"

    def _plain(self, left: int = 0, first: int = 0) -> Tensor:
        """Log-probabilities of all completions, zero behind their ends, as TRL's passes make them."""
        ids, mask = self._ids[:, _PADDING - left :], self._real[:, _PADDING - left :].clone()
        shift = torch.where(mask[:, 1:] == 1, ids[:, 1:], IGNORED)
        shift[:, : left + _PROMPT - 1] = IGNORED
        mask[:, left:] = 1
        mask[:, :left] = 0
        inputs = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1]}
        if first:
            inputs["position_ids"] = (torch.arange(LENGTH - 1, device=self._device) + first).expand(len(ids), -1)
        logps = score_labels(self._model, inputs, shift, self._autocast, self._head)[0]
        return logps[:, left + _PROMPT - 1 :].float()

    def _moves(self, exact: float) -> Measure:
        return lambda difference: (float(difference.median()), max(exact, _ROUNDING * float(self._noise.median())))

    def _judge(self, score: Callable[[], Tensor], measure: Measure) -> str | None:
        """The effect of another way to score, as a clause without subject; None where it is within rounding."""
        with torch.no_grad(), _without_dropout(self._model):
            if not len(self._truth):
                with dtypes_of(self._model) as dtypes, _scaled(self._model):
                    self._truth = self._plain()
                self._rounding = _rounding(dtypes)
                with _scaled(self._model, self._rounding):
                    self._noise = self._difference(self._plain())
            try:
                with _scaled(self._model):
                    difference = self._difference(score())
            except Exception as error:
                if is_out_of_memory(error):  # says nothing of the model
                    raise
                return f"failed with {type(error).__name__}: {error}"
        size, allowed = measure(difference)
        # false for NaN
        return None if size <= allowed else f"moved log-probabilities by {size:.2g} of their spread"

    def _difference(self, scores: Tensor) -> Tensor:
        """Differences of all scored tokens, in units of the spread."""
        scored = self._real[:, _PADDING + _PROMPT :].bool()
        spread = self._truth[scored].std().clamp(min=1e-30)  # a head of zeros has none
        return ((scores - self._truth)[scored] / spread).abs()


def _rounding(dtypes: set[torch.dtype]) -> float:
    """The largest relative rounding error of these and of float32, whose products may be rounded to TF32 or less."""
    least = torch.finfo(torch.float32).eps if torch.get_float32_matmul_precision() == "highest" else 2**-8
    return max(least, *(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point))


@contextmanager
def _scaled(model: torch.nn.Module, noise: float = 0.0) -> Iterator[None]:
    """Scale each output channel of layers with weights by a constant, and each number by up to 1 ± ``noise``."""

    def scale(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if not (isinstance(output, Tensor) and output.is_floating_point() and output.dim()):
            return output
        generator = torch.Generator(output.device).manual_seed(output.shape[-1])
        make = partial(torch.rand, generator=generator, device=output.device)
        output = output * (1 + make(output.shape[-1])).div(2).to(output.dtype)
        return output * (1 + noise * (2 * make(output.shape) - 1)).to(output.dtype) if noise else output

    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(scale) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def dtypes_of(model: torch.nn.Module) -> Iterator[set[torch.dtype]]:
    """The dtypes of the parameters, and those that layers compute in meanwhile: autocast and FSDP2 choose others."""
    dtypes = {parameter.dtype for parameter in model.parameters()}

    def note(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            dtypes.add(output.dtype)

    hooks = [module.register_forward_hook(note) for module in model.modules() if not any(module.children())]
    try:
        yield dtypes
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off, attention's too; layers that repack their weights in evaluation mode stay as they are."""
    changed = [
        module
        for module in model.modules()
        if module.training and not any(hasattr(p, "quant_state") for p in module.parameters(recurse=False))
    ]
    for module in changed:
        module.training = False
    try:
        yield
    finally:
        for module in changed:
            module.training = True

"""A model tried out before it is trusted: three short rows, packed and plain, must give the same log-probabilities.

The config says what a model should do; this shows that it does, with its own code, weights, adapters and attention
kernels. One pass of each kind, without gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from grpo_plus.engine.branches import in_one_row
from grpo_plus.engine.forward import Autocast, Head, score_labels, score_packed
from grpo_plus.engine.pack import lay_out
from grpo_plus.engine.rows import read_rows
from grpo_plus.engine.trees import grow
from grpo_plus.memory.errors import is_out_of_memory

_PROMPT, _LENGTHS = 7, (6, 4, 5)
_TURN = 2  # tokens that the first two completions begin with
LENGTH = _PROMPT + max(_LENGTHS)
"""Tokens of the longest row that is tried: an attention window narrower than this shows as a mismatch."""

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_COARSE = 3e-2


def mismatch(
    model: Any,
    vocabulary: int,
    device: torch.device,
    autocast: Autocast,
    *,
    attention: str,
    sharing: bool,
    joining: bool,
    head: Head,
) -> str | None:
    """Why packing is not exact for this model, or None.

    Differences are judged on average and against the size of the log-probabilities: rounding in half precision moves
    single tokens, a wrong mask or position moves all of them.

    With ``sharing`` rows are to share their prompt, and two of them more; with ``joining`` to stand behind one another
    in one row.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (len(_LENGTHS), LENGTH), generator=generator)
    ids[:, :_PROMPT] = ids[0, :_PROMPT]
    ids[1, : _PROMPT + _TURN] = ids[0, : _PROMPT + _TURN]
    mask = torch.ones_like(ids)
    for row, length in enumerate(_LENGTHS):
        mask[row, _PROMPT + length :] = 0
    rows = read_rows(ids, mask, max(_LENGTHS))
    assert rows is not None
    ids, mask = ids.to(device), mask.to(device)
    every = range(len(_LENGTHS))
    trees = grow(rows, every, None, 1.0) if sharing else grow(rows, every, 1)
    packed = lay_out(trees, rows, device)
    packed = in_one_row(packed, trees, branching=sharing) if joining else packed
    shift = torch.where(mask[:, 1:] == 1, ids[:, 1:], -100)
    inputs = {"input_ids": ids[:, :-1], "attention_mask": torch.ones_like(ids[:, :-1])}
    with torch.no_grad(), _without_dropout(model), dtypes_of(model) as dtypes:
        try:
            found = score_packed(model, packed, autocast, attention=attention, head=head)[0].float()
        except Exception as error:
            if is_out_of_memory(error):  # says nothing of the model
                raise
            return f"a trial on three rows failed ({type(error).__name__}: {error})"
        plain = score_labels(model, inputs, shift, autocast, head)[0][:, _PROMPT - 1 :]
    truth = plain.float().reshape(-1)[packed.target]
    off = float((found - truth).abs().mean() / (1 + truth.abs().mean()))
    allowed = max(_TOLERANCE.get(dtype, _COARSE) for dtype in dtypes)
    if off <= allowed:  # false for NaN
        return None
    return f"three rows tried out on the model gave log-probabilities off by {off:.2g} of their size when packed"


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

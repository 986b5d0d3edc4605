"""Join rows of several rounds of sampling into one batch: remove the padding, join, pad again.

A round is a scored generation batch of its own. Its rows, over all ranks, are counted from 0.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SCORED = ("old_per_token_logps", "ref_per_token_logps")
"""Keys of log-probabilities from passes over the padded rows."""
TOKENS = ("completion_ids", "completion_mask", "tool_mask", *SCORED, "sampling_per_token_logps")
"""Keys with one value a completion token; any key of that width is treated alike."""
_PROMPT = ("prompt_ids", "prompt_mask")
_LISTS = ("support",)
"""Keys whose values are lists of tensors, one a row, of any length."""
PROMPT_WIDTH = "prompt_width"
"""Columns of a row's prompt when it was scored, padding included; 0 without a completion."""
_LOW = -1e4
_FILL = {"tool_mask": 1, "importance_sampling_ratio": 1.0, "ref_per_token_logps": _LOW}
"""Padding values other than 0: the loss masks them, but exp(ref - policy) must be finite."""


class Source(NamedTuple):
    """The row of a round for one place in the batch; its prompt only if not ``has_completion``."""

    round: int
    row: int
    has_completion: bool = True


Row = dict[str, Any]
"""One row of a batch, without padding."""


def live_groups(advantages: Tensor, num_generations: int) -> list[bool]:
    """Return by group whether an advantage is not 0; (N,) or (N, T) advantages, groups contiguous.

    >>> import torch
    >>> live_groups(torch.tensor([0.5, -0.5, 0.0, 0.0]), 2)
    [True, False]
    """
    live: list[bool] = (advantages != 0).reshape(len(advantages) // num_generations, -1).any(dim=1).tolist()
    return live


def sources_of(groups: Sequence[tuple[int, int]], size: int) -> list[Source]:
    """Return the rows of groups of ``size``; a group is a round and the number in it."""
    return [Source(of, group * size + member) for of, group in groups for member in range(size)]


def full(groups: int, size: int, ranks: int) -> int:
    """Return the least number of groups, at least ``groups``, whose rows divide evenly among the ranks.

    >>> full(3, 3, 2)
    4
    """
    step = ranks // math.gcd(ranks, size)
    return -(-groups // step) * step


def cut(output: Mapping[str, Any], lengths: Sequence[int]) -> list[Row]:
    """Return the rows of a batch, with completions of these ``lengths``. Scalars belong to no row.

    Raises:
        ValueError: a value has another number of rows.
    """
    width = output["completion_ids"].size(1)
    rows: list[Row] = [{PROMPT_WIDTH: torch.tensor(output["prompt_ids"].size(1))} for _ in lengths]
    prompts = output["prompt_mask"].sum(1).tolist()
    for name, values in output.items():
        if values is None or (isinstance(values, Tensor) and values.dim() == 0):
            continue
        if len(values) != len(rows):
            raise ValueError(f"the batch has {len(values)} values of {name!r}, expected one a row ({len(rows)})")
        for row, value, prompt, length in zip(rows, values, prompts, lengths, strict=True):
            if name in _PROMPT:
                value = value[len(value) - prompt :]  # noqa: PLW2901
            elif isinstance(values, Tensor) and values.dim() > 1 and values.size(1) == width:
                value = value[: max(length, 1)]  # noqa: PLW2901 - one number may be for all tokens
            row[name] = value
    return rows


def emptied(row: Row) -> Row:
    """Return the same prompt without a completion."""
    prompt: Row = {}
    for name, value in row.items():
        if name in _PROMPT:
            prompt[name] = value
        elif isinstance(value, Tensor):
            prompt[name] = value[:0] if value.dim() else torch.zeros_like(value)
        else:
            prompt[name] = type(value)() if isinstance(value, list | tuple) else value
    return prompt


def join(rows: Sequence[Row], *, pad: int, multiple: int | None, device: torch.device) -> dict[str, Any]:
    """Return a batch of rows, prompts padded on the left and completions on the right, to a ``multiple``."""
    width = _up(max(1, *(len(row["completion_ids"]) for row in rows)), multiple)
    prompt = _up(max(len(row["prompt_ids"]) for row in rows), multiple)
    batch: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if not isinstance(first, Tensor) or name in _LISTS:
            batch[name] = values
            continue
        fill = pad if name in ("prompt_ids", "completion_ids") else _FILL.get(name, 0)
        if first.dim() == 0:
            batch[name] = torch.stack([value.to(device) for value in values])
        elif name in _PROMPT:
            batch[name] = _padded(values, prompt, fill, device, left=True)
        else:
            longest = max(len(value) for value in values)
            batch[name] = _padded(values, width if name in TOKENS or longest > 1 else 1, fill, device, left=False)
    return batch


def _up(width: int, multiple: int | None) -> int:
    return width if multiple is None else -(-width // multiple) * multiple


def _padded(values: Sequence[Tensor], width: int, fill: float, device: torch.device, *, left: bool) -> Tensor:
    padded = values[0].new_full((len(values), width, *values[0].shape[1:]), fill, device=device)
    for place, value in enumerate(values):
        length = len(value)
        padded[place, width - length if left else 0 : width if left else length] = value.to(device)
    return padded


def picked(rounds: Sequence[Tensor], sources: Sequence[Source], fill: float) -> Tensor:
    """Return the values of (N,) or (N, T) tensors, one a round, at ``sources``; ``fill`` without a completion."""
    shapes = zip(*(values.shape[1:] for values in rounds), strict=True)
    width = [max(sizes) for sizes in shapes]
    starts = [sum(len(values) for values in rounds[:place]) for place in range(len(rounds))]
    padded = rounds[0].new_full((sum(map(len, rounds)) + 1, *width), fill)
    for start, values in zip(starts, rounds, strict=True):
        if values.dim() == 1:
            padded[start : start + len(values)] = values
        else:
            padded[start : start + len(values)] = 0
            padded[start : start + len(values), : values.size(1)] = values
    index = [starts[source.round] + source.row if source.has_completion else len(padded) - 1 for source in sources]
    return padded[torch.tensor(index, device=padded.device)]

"""The rows of a micro-batch on the host, as planning needs them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

_LABEL_BITS = 32


@dataclass(frozen=True)
class Rows:
    """The rows of a micro-batch.

    A row is its prompt and its completion up to the last scored token. Its steps are its tokens except the last, each
    paired with the next token if that is scored. Rows with equal first steps share the log-probabilities of one pass
    over them.

    Attributes:
        prompts: tokens of each prompt.
        completions: tokens of each completion, up to the last scored one.
        keys: equal for rows whose prompts have the same tokens.
        steps: the steps of each row, as numbers; `tokens_of` and `labels_of` read them.
        prompt_width: columns of the prompts, padding included.
        width: columns of the rows, padding included.
        padded: some column of some row is padding.
    """

    prompts: Sequence[int]
    completions: Sequence[int]
    keys: Sequence[bytes]
    steps: Sequence[np.ndarray]
    prompt_width: int
    width: int
    padded: bool


def tokens_of(steps: np.ndarray) -> np.ndarray:
    """Return the input tokens of steps."""
    tokens: np.ndarray = steps >> _LABEL_BITS
    return tokens


def labels_of(steps: np.ndarray) -> np.ndarray:
    """Return the scored next tokens of steps; -1 for none."""
    labels: np.ndarray = (steps & (2**_LABEL_BITS - 1)) - 1
    return labels


def read_rows(
    input_ids_BS: torch.Tensor,
    attention_mask_BS: torch.Tensor,
    completion_width: int,
    scored_BC: torch.Tensor | None = None,
) -> Rows | None:
    """Measure the rows of a batch; None unless padding is left of the prompt and right of the completion.

    ``scored_BC`` is the mask of scored completion tokens; None: all of them. Padding is never scored.
    """
    ids = input_ids_BS.cpu()
    mask = attention_mask_BS.cpu().bool()
    width = ids.shape[1]
    prompt_width = width - completion_width
    prompt_mask, completion_mask = mask[:, :prompt_width], mask[:, prompt_width:]
    prompts, completions = prompt_mask.sum(1), completion_mask.sum(1)
    left = torch.arange(prompt_width) >= prompt_width - prompts[:, None]
    right = torch.arange(completion_width) < completions[:, None]
    if prompt_width == 0 or not (torch.equal(left, prompt_mask) and torch.equal(right, completion_mask)):
        return None
    scored = completion_mask if scored_BC is None else completion_mask & scored_BC.cpu().bool()
    column = torch.arange(1, completion_width + 1)
    lengths, ends = prompts.tolist(), (scored * column).amax(1).tolist() if completion_width else [0] * len(ids)
    array = ids[:, :prompt_width].contiguous().numpy()
    keys = [array[row, prompt_width - length :].tobytes() for row, length in enumerate(lengths)]
    labels = torch.zeros_like(ids[:, 1:])
    labels[:, prompt_width - 1 :] = torch.where(scored, ids[:, prompt_width:] + 1, 0)
    steps = ((ids[:, :-1] << _LABEL_BITS) | labels).numpy()
    return Rows(
        lengths,
        ends,
        keys,
        [steps[row, prompt_width - lengths[row] : prompt_width + ends[row] - 1] for row in range(len(ids))],
        prompt_width,
        width,
        padded=not bool(mask.all()),
    )


def columns(rows: Rows, chosen: Sequence[int], *, left: bool = True, right: bool = True) -> tuple[int, int]:
    """Return the columns of prompts and completions of the chosen rows, padding dropped on the chosen sides."""
    prompt = max(rows.prompts[row] for row in chosen) if left else rows.prompt_width
    completion = max(rows.completions[row] for row in chosen) if right else rows.width - rows.prompt_width
    return prompt, completion


def trim(
    rows: Rows, chosen: Sequence[int], input_ids_BS: torch.Tensor, attention_mask_BS: torch.Tensor, **sides: bool
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the chosen rows without the columns that pad all of them, on the ``sides`` of `columns`.

    Prompts are padded left and completions right. The result is token ids, attention mask, and the number of remaining
    completion columns.
    """
    prompt, completion = columns(rows, chosen, **sides)
    window = slice(rows.prompt_width - prompt, rows.prompt_width + completion)
    picked = torch.tensor(list(chosen), device=input_ids_BS.device)
    return input_ids_BS[picked, window], attention_mask_BS[picked, window], completion

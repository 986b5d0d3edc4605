"""The rows of a micro-batch on the host: all that planning needs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

_LABEL_BITS = 32


@dataclass(frozen=True)
class Rows:
    """The rows of a micro-batch.

    A row is its prompt and its completion up to the last token that is scored: nothing needs those after it. Its steps
    are its tokens but the last, each together with the next token where that is scored: two rows whose first steps are
    equal get the same log-probabilities from the same pass over them.

    Attributes:
        prompts: tokens of each prompt.
        completions: tokens of each completion, up to the last scored one.
        keys: equal for rows whose prompts have the same tokens.
        steps: the steps of each row, as numbers; `tokens_of` and `labels_of` read them.
        prompt_width: columns of the prompts, padding included.
        width: columns of the rows, padding included.
        padded: whether any column of any row is padding.
    """

    prompts: Sequence[int]
    completions: Sequence[int]
    keys: Sequence[bytes]
    steps: Sequence[np.ndarray]
    prompt_width: int
    width: int
    padded: bool


def tokens_of(steps: np.ndarray) -> np.ndarray:
    """The tokens that steps take."""
    tokens: np.ndarray = steps >> _LABEL_BITS
    return tokens


def labels_of(steps: np.ndarray) -> np.ndarray:
    """The tokens that are scored behind them; -1 where none is."""
    labels: np.ndarray = (steps & (2**_LABEL_BITS - 1)) - 1
    return labels


def read_rows(
    input_ids_BS: torch.Tensor,
    attention_mask_BS: torch.Tensor,
    completion_width: int,
    scored_BC: torch.Tensor | None = None,
) -> Rows | None:
    """Measure the rows of a batch; None where padding is not left of the prompt and right of the completion.

    ``scored_BC`` says which completion tokens are scored, padding aside; None: all of them.
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
    """Columns of the prompts and of the completions of the chosen rows, padding dropped on either side."""
    prompt = max(rows.prompts[row] for row in chosen) if left else rows.prompt_width
    completion = max(rows.completions[row] for row in chosen) if right else rows.width - rows.prompt_width
    return prompt, completion


def trim(
    rows: Rows, chosen: Sequence[int], input_ids_BS: torch.Tensor, attention_mask_BS: torch.Tensor, **sides: bool
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The chosen rows without the columns that pad all of them, on the ``sides`` that `columns` takes.

    Prompts are padded left and completions right. Returns token ids, attention mask, and the number of completion
    columns left.
    """
    prompt, completion = columns(rows, chosen, **sides)
    window = slice(rows.prompt_width - prompt, rows.prompt_width + completion)
    picked = torch.tensor(list(chosen), device=input_ids_BS.device)
    return input_ids_BS[picked, window], attention_mask_BS[picked, window], completion

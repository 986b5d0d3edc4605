"""Padding columns that no row of a micro-batch uses."""

from collections.abc import Sequence

import torch

from grpo_plus.engine.rows import Rows


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

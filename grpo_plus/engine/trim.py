"""Padding columns that no row of a micro-batch uses."""

from collections.abc import Sequence

import torch

from grpo_plus.engine.rows import Rows


def trim(
    rows: Rows,
    chosen: Sequence[int],
    input_ids_BS: torch.Tensor,
    attention_mask_BS: torch.Tensor,
    *,
    narrow: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The chosen rows without the columns that pad all of them; all columns stay where ``narrow`` is false.

    Prompts are padded left and completions right. Returns token ids, attention mask, and the number of completion
    columns left.
    """
    prompt = max(rows.prompts[row] for row in chosen)
    completion = max(rows.completions[row] for row in chosen)
    if not narrow:
        prompt, completion = rows.prompt_width, rows.width - rows.prompt_width
    columns = slice(rows.prompt_width - prompt, rows.prompt_width + completion)
    picked = torch.tensor(list(chosen), device=input_ids_BS.device)
    return input_ids_BS[picked, columns], attention_mask_BS[picked, columns], completion

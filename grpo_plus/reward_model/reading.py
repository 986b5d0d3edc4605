"""Texts and tokens as the readers of reward models see them.

TRL's GRPO hands a reward model the chat template's text of prompt and completion, or both texts one behind the other,
and adds no special tokens; the verifier ``prm`` (style ``concat``) puts question and steps together as tokens. Models
are trained and measured here on exactly those tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_plus.reward_model.preferences import Conversation
from grpo_plus.reward_model.stepwise import Stepwise

SEPARATOR = "\n"
"""Behind each step; the default of ``prm``'s style ``concat``."""


def as_text(tokenizer: Any, whole: Conversation) -> str:
    """Prompt and completion as one text."""
    return whole if isinstance(whole, str) else str(tokenizer.apply_chat_template(whole, tokenize=False))


def token_ids(tokenizer: Any, whole: Conversation) -> list[int]:
    """The tokens of prompt and completion."""
    ids: list[int] = tokenizer(text=as_text(tokenizer, whole), add_special_tokens=False)["input_ids"]
    return ids


def step_ids(tokenizer: Any, row: Stepwise) -> tuple[list[int], list[int]]:
    """The tokens of a question with its steps, and the positions of the steps' ends."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    ids = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids += encode(row.question.strip())
    ends = []
    for step in row.steps:
        ids += [*encode(step), *encode(SEPARATOR)]
        ends.append(len(ids) - 1)
    return ids, ends


def padded(rows: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask`` of rows padded on the right."""
    width = max(map(len, rows))
    ids = [[*row, *[pad_token_id] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

"""Easy prompts first, harder ones later in the run.

The difficulty is a column of the dataset. At first the easiest ``start`` of the prompts are open; their share grows
evenly until all are open after ``full`` of the steps. Prompts of equal difficulty open together. Biased: prompts that
are not open are sampled by ``explore`` only.

Use it when hard prompts are never solved at first, and the difficulty of each is available or measurable in advance.

Paper: Bengio et al., 2009, Curriculum learning.

Degenerate case: equal difficulties open all prompts at once.

Config:
    selection: {name: curriculum, column: level, start: 0.2, full: 0.5}
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from grpo_plus.selection.history import PromptHistory
from grpo_plus.selection.part import Selection, SelectionOutputError
from grpo_verifiers.errors.messages import show, unknown
from grpo_verifiers.options import Range


def curriculum(
    history: PromptHistory,
    *,
    column: str,
    start: Annotated[float, Range(0, 1, open_low=True)] = 0.2,
    full: Annotated[float, Range(0, 1, open_low=True)] = 0.5,
) -> Tensor:
    """1 for the easiest share s of the prompts, 0 for the rest; s grows from start to 1 over full of the steps.

    Args:
        history: of the prompts; its ``progress`` and ``columns`` are read.
        column: the column of the dataset with the difficulty, a number: higher is harder.
        start: share of the prompts that is open at first.
        full: share of the steps after which all are.
    """
    if column not in history.columns:
        raise SelectionOutputError(f"selection 'curriculum': {unknown('column', column, history.columns)}")
    difficulty_P = _numbers(history, column)
    share = min(1.0, start + (1 - start) * history.progress / full)
    order = difficulty_P.sort().values
    hardest = order[max(0, math.ceil(share * len(order) - 1e-9) - 1)]
    return (difficulty_P <= hardest).double()


def _numbers(history: PromptHistory, column: str) -> Tensor:
    values = history.columns[column]
    for place, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            prompt = show(history.columns["prompt"][place]) if "prompt" in history.columns else str(place)
            raise SelectionOutputError(
                f"selection 'curriculum': the column {column!r} is {show(value)} for the prompt {prompt}, expected a "
                "finite number."
            )
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


SELECTION = Selection("curriculum", curriculum, weighted=False)

"""Every prompt alike, in the host's own order; the history of the prompts is kept all the same."""

import torch
from torch import Tensor

from grpo_plus.selection.history import PromptHistory
from grpo_plus.selection.part import Selection


def uniform(history: PromptHistory) -> Tensor:
    """All rows alike, in TRL's own order."""
    return torch.ones(len(history), dtype=torch.float64)


SELECTION = Selection("uniform", uniform, draws=False)

"""Every prompt alike, in the host's own order; the history of the prompts is updated nevertheless.

Use it when TRL's order should stay and the metrics of the history are useful: how many prompts are solved, died out or
impossible.

Degenerate case: none, it is the default without a selection.
"""

import torch
from torch import Tensor

from grpo_plus.selection.history import PromptHistory
from grpo_plus.selection.part import Selection


def uniform(history: PromptHistory) -> Tensor:
    """All rows alike, in TRL's own order."""
    return torch.ones(len(history), dtype=torch.float64)


SELECTION = Selection("uniform", uniform, draws=False)

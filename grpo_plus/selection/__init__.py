"""Selection of prompts by pure functions of their history, and methods against dead groups."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.selection.checking import selection_weights as selection_weights
    from grpo_plus.selection.history import PromptHistory as PromptHistory
    from grpo_plus.selection.part import Selection as Selection
    from grpo_plus.selection.registry import get_selection as get_selection
    from grpo_plus.selection.registry import register_selection as register_selection
    from grpo_plus.selection.registry import selections as selections

_WHERE = {
    "checking": "selection_weights",
    "history": "PromptHistory",
    "part": "Selection",
    "registry": "get_selection register_selection selections",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

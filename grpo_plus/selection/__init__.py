"""Which prompts are drawn, by pure functions of their history, and what becomes of groups that teach nothing."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.selection.checking import selection_weights as selection_weights
    from grpo_plus.selection.history import PromptHistory as PromptHistory
    from grpo_plus.selection.part import Selection as Selection
    from grpo_plus.selection.registry import get_selection as get_selection
    from grpo_plus.selection.registry import register_selection as register_selection
    from grpo_plus.selection.registry import selections as selections

_NAMES = {
    "PromptHistory": "grpo_plus.selection.history",
    "Selection": "grpo_plus.selection.part",
    "get_selection": "grpo_plus.selection.registry",
    "register_selection": "grpo_plus.selection.registry",
    "selection_weights": "grpo_plus.selection.checking",
    "selections": "grpo_plus.selection.registry",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

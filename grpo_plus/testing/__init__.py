"""The public contract kit for third-party parts, and a tiny model to try them on."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.testing.advantages import check_advantage as check_advantage
    from grpo_plus.testing.contract import parametrize_with_checks as parametrize_with_checks
    from grpo_plus.testing.objectives import check_objective as check_objective
    from grpo_plus.testing.selections import check_selection as check_selection
    from grpo_plus.testing.tiny import make_tiny_model as make_tiny_model
    from grpo_plus.testing.tiny import make_tiny_tokenizer as make_tiny_tokenizer

_WHERE = {
    "advantages": "check_advantage",
    "contract": "parametrize_with_checks",
    "objectives": "check_objective",
    "selections": "check_selection",
    "tiny": "make_tiny_model make_tiny_tokenizer",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

"""GRPO on Hugging Face TRL with the advantage estimator, the objective and the verifier as parts."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.advantages import register_advantage as register_advantage
    from grpo_plus.config import GRPOPlusConfig as GRPOPlusConfig
    from grpo_plus.objectives import register_objective as register_objective
    from grpo_plus.selection import register_selection as register_selection
    from grpo_plus.trainer import GRPOPlusTrainer as GRPOPlusTrainer
    from grpo_plus.training.on_finding import OnFinding as OnFinding

__version__ = "0.1.0"

_NAMES = {
    "GRPOPlusConfig": "grpo_plus.config",
    "GRPOPlusTrainer": "grpo_plus.trainer",
    "OnFinding": "grpo_plus.training.on_finding",
    "register_advantage": "grpo_plus.advantages",
    "register_objective": "grpo_plus.objectives",
    "register_selection": "grpo_plus.selection",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

"""Advantage estimators: pure functions from a table of rewards to one number a completion, step or token."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.advantages.checking import parameters_of as parameters_of
    from grpo_plus.advantages.compute import compute_advantages as compute_advantages
    from grpo_plus.advantages.estimator import Estimator as Estimator
    from grpo_plus.advantages.estimator import EstimatorFailedError as EstimatorFailedError
    from grpo_plus.advantages.estimator import EstimatorKeywordError as EstimatorKeywordError
    from grpo_plus.advantages.estimator import EstimatorOutputError as EstimatorOutputError
    from grpo_plus.advantages.estimator import NotAnEstimatorError as NotAnEstimatorError
    from grpo_plus.advantages.metrics import advantage_metrics as advantage_metrics
    from grpo_plus.advantages.registry import advantages as advantages
    from grpo_plus.advantages.registry import get_advantage as get_advantage
    from grpo_plus.advantages.registry import register_advantage as register_advantage
    from grpo_plus.advantages.table import RewardTable as RewardTable
    from grpo_plus.advantages.table import StepScores as StepScores

_NAMES = {
    "Estimator": "grpo_plus.advantages.estimator",
    "EstimatorFailedError": "grpo_plus.advantages.estimator",
    "EstimatorKeywordError": "grpo_plus.advantages.estimator",
    "EstimatorOutputError": "grpo_plus.advantages.estimator",
    "NotAnEstimatorError": "grpo_plus.advantages.estimator",
    "RewardTable": "grpo_plus.advantages.table",
    "StepScores": "grpo_plus.advantages.table",
    "advantage_metrics": "grpo_plus.advantages.metrics",
    "advantages": "grpo_plus.advantages.registry",
    "compute_advantages": "grpo_plus.advantages.compute",
    "get_advantage": "grpo_plus.advantages.registry",
    "parameters_of": "grpo_plus.advantages.checking",
    "register_advantage": "grpo_plus.advantages.registry",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

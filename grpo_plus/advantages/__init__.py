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

_WHERE = {
    "checking": "parameters_of",
    "compute": "compute_advantages",
    "estimator": "Estimator EstimatorFailedError EstimatorKeywordError EstimatorOutputError NotAnEstimatorError",
    "metrics": "advantage_metrics",
    "registry": "advantages get_advantage register_advantage",
    "table": "RewardTable StepScores",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

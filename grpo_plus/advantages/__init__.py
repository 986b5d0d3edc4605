"""Advantage estimators: pure functions from a table of rewards to one number a completion, step or token."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.advantages.checking import anchor_parts as anchor_parts
    from grpo_plus.advantages.checking import check_advantage_kwargs as check_advantage_kwargs
    from grpo_plus.advantages.checking import leaf_estimators as leaf_estimators
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
    from grpo_plus.advantages.weights import unread_weights as unread_weights

_WHERE = {
    "checking": "anchor_parts check_advantage_kwargs leaf_estimators parameters_of",
    "compute": "compute_advantages",
    "estimator": "Estimator EstimatorFailedError EstimatorKeywordError EstimatorOutputError NotAnEstimatorError",
    "metrics": "advantage_metrics",
    "registry": "advantages get_advantage register_advantage",
    "table": "RewardTable StepScores",
    "weights": "unread_weights",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

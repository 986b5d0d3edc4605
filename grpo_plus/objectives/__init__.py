"""Objectives: ratios, surrogates, KL estimators and reductions as pure functions, and their compositions."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.objectives.batch import Counts as Counts
    from grpo_plus.objectives.batch import Metric as Metric
    from grpo_plus.objectives.batch import Terms as Terms
    from grpo_plus.objectives.batch import TokenBatch as TokenBatch
    from grpo_plus.objectives.compose import build_objective as build_objective
    from grpo_plus.objectives.group import GroupScores as GroupScores
    from grpo_plus.objectives.group import Pulls as Pulls
    from grpo_plus.objectives.objective import Objective as Objective
    from grpo_plus.objectives.pieces import piece_registries as piece_registries
    from grpo_plus.objectives.registry import objectives as objectives
    from grpo_plus.objectives.registry import register_objective as register_objective
    from grpo_plus.objectives.target import Targets as Targets
    from grpo_plus.objectives.target import make_targets as make_targets

_WHERE = {
    "batch": "Counts Metric Terms TokenBatch",
    "compose": "build_objective",
    "group": "GroupScores Pulls",
    "objective": "Objective",
    "pieces": "piece_registries",
    "registry": "objectives register_objective",
    "target": "Targets make_targets",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

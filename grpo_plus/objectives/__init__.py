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

_NAMES = {
    "Counts": "grpo_plus.objectives.batch",
    "GroupScores": "grpo_plus.objectives.group",
    "Metric": "grpo_plus.objectives.batch",
    "Objective": "grpo_plus.objectives.objective",
    "Pulls": "grpo_plus.objectives.group",
    "Targets": "grpo_plus.objectives.target",
    "Terms": "grpo_plus.objectives.batch",
    "TokenBatch": "grpo_plus.objectives.batch",
    "build_objective": "grpo_plus.objectives.compose",
    "make_targets": "grpo_plus.objectives.target",
    "objectives": "grpo_plus.objectives.registry",
    "piece_registries": "grpo_plus.objectives.pieces",
    "register_objective": "grpo_plus.objectives.registry",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

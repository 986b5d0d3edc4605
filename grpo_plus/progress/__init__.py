"""What a run shows of itself while it trains: where its time goes, and a live display."""

from typing import TYPE_CHECKING

from grpo_plus.progress.names import METRICS as METRICS
from grpo_plus.progress.names import PARTS as PARTS
from grpo_plus.progress.names import metric as metric
from grpo_verifiers._lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.progress.clock import StepClock as StepClock
    from grpo_plus.progress.display import ProgressDisplay as ProgressDisplay

_NAMES = {"ProgressDisplay": "grpo_plus.progress.display", "StepClock": "grpo_plus.progress.clock"}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted([*_NAMES, "METRICS", "PARTS", "metric"])  # noqa: PLE0605 - one list of names, not two

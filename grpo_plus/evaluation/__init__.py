"""The accuracy of a model on a dataset: pass@1, pass@k and majority@k with intervals, judged by verifiers."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.evaluation.estimators import Estimate as Estimate
    from grpo_plus.evaluation.estimators import maj_at_k as maj_at_k
    from grpo_plus.evaluation.estimators import mean as mean
    from grpo_plus.evaluation.estimators import pass_at_k as pass_at_k
    from grpo_plus.evaluation.estimators import share as share
    from grpo_plus.evaluation.results import Evaluation as Evaluation
    from grpo_plus.evaluation.results import Results as Results
    from grpo_plus.evaluation.results import Sample as Sample
    from grpo_plus.evaluation.results import gain as gain
    from grpo_plus.evaluation.run import evaluate as evaluate
    from grpo_plus.evaluation.sample import Drawing as Drawing
    from grpo_plus.evaluation.tool_use import ToolUse as ToolUse

_WHERE = {
    "estimators": "Estimate maj_at_k mean pass_at_k share",
    "results": "Evaluation Results Sample gain",
    "run": "evaluate",
    "sample": "Drawing",
    "tool_use": "ToolUse",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

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

_HERE = "grpo_plus.evaluation"
_NAMES = {
    "Drawing": f"{_HERE}.sample",
    "Estimate": f"{_HERE}.estimators",
    "Evaluation": f"{_HERE}.results",
    "Results": f"{_HERE}.results",
    "Sample": f"{_HERE}.results",
    "ToolUse": f"{_HERE}.tool_use",
    "evaluate": f"{_HERE}.run",
    "gain": f"{_HERE}.results",
    "maj_at_k": f"{_HERE}.estimators",
    "mean": f"{_HERE}.estimators",
    "pass_at_k": f"{_HERE}.estimators",
    "share": f"{_HERE}.estimators",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

"""Process supervision: the steps of a completion, and verifiers that score them.

`segment` finds the steps of a text by name; ``math_steps`` and ``prm`` score them, and ``tool_used``,
``tool_valid`` and ``turn_reward`` judge turns with tools. A verifier of your own returns
 ``Verdict(score, steps=(Step(start, end, score), ...))``; `step_verdict` makes one from spans and scores.
"""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.steps._math_steps import math_steps as math_steps
    from grpo_verifiers.steps._prm import prm as prm
    from grpo_verifiers.steps._turns import tool_used as tool_used
    from grpo_verifiers.steps._turns import tool_valid as tool_valid
    from grpo_verifiers.steps._turns import turn_reward as turn_reward
    from grpo_verifiers.steps.aggregate import step_verdict as step_verdict
    from grpo_verifiers.steps.segments import SEGMENTERS as SEGMENTERS
    from grpo_verifiers.steps.segments import segment as segment

_WHERE = {
    "_math_steps": "math_steps",
    "_prm": "prm",
    "_turns": "tool_used tool_valid turn_reward",
    "aggregate": "step_verdict",
    "segments": "SEGMENTERS segment",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

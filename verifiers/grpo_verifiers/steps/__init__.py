"""Process supervision: the steps of a completion, and verifiers that score them.

`segment` finds the steps of a text by name; ``math_steps``, ``code_steps`` and ``prm`` score them, and ``tool_used``,
``tool_valid``, ``turn_reward`` and ``turns_overlong`` look at turns, where there are tools. A verifier of your own
returns ``Verdict(score, steps=(Step(start, end, score), ...))``; `step_verdict` makes one from spans and scores.
"""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.steps._code_steps import code_steps as code_steps
    from grpo_verifiers.steps._math_steps import math_steps as math_steps
    from grpo_verifiers.steps._prm import prm as prm
    from grpo_verifiers.steps._turns import tool_used as tool_used
    from grpo_verifiers.steps._turns import tool_valid as tool_valid
    from grpo_verifiers.steps._turns import turn_reward as turn_reward
    from grpo_verifiers.steps._turns import turns_overlong as turns_overlong
    from grpo_verifiers.steps.aggregate import step_verdict as step_verdict
    from grpo_verifiers.steps.segments import SEGMENTERS as SEGMENTERS
    from grpo_verifiers.steps.segments import segment as segment

_NAMES = {
    "SEGMENTERS": f"{__name__}.segments",
    "code_steps": f"{__name__}._code_steps",
    "math_steps": f"{__name__}._math_steps",
    "prm": f"{__name__}._prm",
    "segment": f"{__name__}.segments",
    "step_verdict": f"{__name__}.aggregate",
    "tool_used": f"{__name__}._turns",
    "tool_valid": f"{__name__}._turns",
    "turn_reward": f"{__name__}._turns",
    "turns_overlong": f"{__name__}._turns",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

"""Rewards that cannot be fooled cheaply, cannot hang a run, and cannot end one by surprise. No torch, no TRL."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.compose import all_of as all_of
    from grpo_verifiers.compose import any_of as any_of
    from grpo_verifiers.compose import gated as gated
    from grpo_verifiers.compose import weighted as weighted
    from grpo_verifiers.tools.registry import environment as environment
    from grpo_verifiers.tools.registry import get_environment as get_environment
    from grpo_verifiers.tools.registry import get_tool as get_tool
    from grpo_verifiers.tools.registry import tool as tool
    from grpo_verifiers.verdict import Status as Status
    from grpo_verifiers.verdict import Step as Step
    from grpo_verifiers.verdict import Verdict as Verdict
    from grpo_verifiers.verifying import Verifier as Verifier
    from grpo_verifiers.verifying import get_verifier as get_verifier
    from grpo_verifiers.verifying import verifier as verifier

_WHERE = {
    "compose": "all_of any_of gated weighted",
    "tools.registry": "environment get_environment get_tool tool",
    "verdict": "Status Step Verdict",
    "verifying": "Verifier get_verifier verifier",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

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

_NAMES = {
    "Status": "grpo_verifiers.verdict",
    "Step": "grpo_verifiers.verdict",
    "Verdict": "grpo_verifiers.verdict",
    "Verifier": "grpo_verifiers.verifying",
    "all_of": "grpo_verifiers.compose",
    "any_of": "grpo_verifiers.compose",
    "environment": "grpo_verifiers.tools.registry",
    "gated": "grpo_verifiers.compose",
    "get_environment": "grpo_verifiers.tools.registry",
    "get_tool": "grpo_verifiers.tools.registry",
    "get_verifier": "grpo_verifiers.verifying",
    "tool": "grpo_verifiers.tools.registry",
    "verifier": "grpo_verifiers.verifying",
    "weighted": "grpo_verifiers.compose",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

"""A language model behind an OpenAI-compatible endpoint as verifier."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.judge._judge import judge as judge
    from grpo_verifiers.judge._request import JudgeConfigurationError as JudgeConfigurationError

_NAMES = {"JudgeConfigurationError": f"{__name__}._request", "judge": f"{__name__}._judge"}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two

"""A language model at an OpenAI-compatible endpoint as verifier."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.judge._judge import judge as judge
    from grpo_verifiers.judge._request import JudgeConfigurationError as JudgeConfigurationError

_WHERE = {"_judge": "judge", "_request": "JudgeConfigurationError"}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

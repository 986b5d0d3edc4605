"""A language model behind an OpenAI-compatible endpoint as verifier."""

from typing import TYPE_CHECKING

from grpo_verifiers.registry import lazy_names
from grpo_verifiers.text._options import OptionCheck

if TYPE_CHECKING:
    from grpo_verifiers.judge._judge import judge as judge
    from grpo_verifiers.judge._request import JudgeConfigurationError as JudgeConfigurationError

_NAMES = {"JudgeConfigurationError": f"{__name__}._request", "judge": f"{__name__}._judge"}
OPTIONS_CHECKS = {"judge": OptionCheck(_NAMES["judge"], "judge")}
"""Name of a check to a callable that takes its options as keywords and returns the problems with their values."""

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = ["OPTIONS_CHECKS", *_NAMES]  # noqa: PLE0604 - one list of names, not two

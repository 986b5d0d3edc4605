"""From scored completions to advantages: prompts, dead groups, replay, the reward table, the estimator."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.training.batch.advantages import Advantages as Advantages
    from grpo_plus.training.batch.advantages import StepScorer as StepScorer
    from grpo_plus.training.batch.dead_groups import DeadGroupRefill as DeadGroupRefill
    from grpo_plus.training.batch.prompt_sampler import PromptSampler as PromptSampler
    from grpo_plus.training.batch.reward_table import is_truncated as is_truncated
    from grpo_plus.training.batch.reward_table import per_completion as per_completion

_WHERE = {
    "advantages": "Advantages StepScorer",
    "dead_groups": "DeadGroupRefill",
    "prompt_sampler": "PromptSampler",
    "reward_table": "is_truncated per_completion",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)

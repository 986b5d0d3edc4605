"""From scored completions to advantages: prompts, dead groups, replay, the reward table, the estimator."""

from grpo_plus.training.batch.advantages import Advantages as Advantages
from grpo_plus.training.batch.advantages import StepScorer as StepScorer
from grpo_plus.training.batch.dead_groups import DeadGroupRefill as DeadGroupRefill
from grpo_plus.training.batch.prompt_sampler import PromptSampler as PromptSampler
from grpo_plus.training.batch.reward_table import is_truncated as is_truncated
from grpo_plus.training.batch.reward_table import per_completion as per_completion

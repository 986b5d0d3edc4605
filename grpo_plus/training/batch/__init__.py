"""From scored completions to advantages: prompts, dead groups, replay, the reward table, the estimator."""

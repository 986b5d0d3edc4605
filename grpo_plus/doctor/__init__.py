"""What ``grpo-plus doctor`` says: facts are gathered in ``facts/``, and judged by pure functions in ``checks/``."""

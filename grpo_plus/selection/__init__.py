"""Which prompts are drawn, and what becomes of groups that teach nothing."""

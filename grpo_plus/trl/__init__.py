"""All knowledge of TRL's private attributes, one file a topic; ``python -m grpo_plus.trl`` checks the installed TRL."""

"""Supervised training on solutions before GRPO: ``warm_start`` in a config."""

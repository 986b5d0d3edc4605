"""Sampling: the lean rollout, tools in turns, vLLM, allowed tokens."""

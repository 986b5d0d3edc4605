"""Rewards: verifiers, steps and turns of completions, the reward model that trains along."""

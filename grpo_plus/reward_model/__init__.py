"""Reward models: losses of preferences and of step labels, ranking accuracy, the token a score is read at, data."""

"""Check gold answers and tests before training."""

"""Beside the training loop: loss, rewards, verification, retry, clock and checkpoints."""

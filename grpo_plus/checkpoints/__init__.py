"""Checkpoints as files: completeness, order of writing, rotation, and errors of the disk."""

"""Checkpoints as files: which are whole, in which order they were written, which go, and what a disk refuses."""

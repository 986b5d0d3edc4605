"""Sweeps as tasks of a Ray cluster: `--on ray`, loaded by name only."""

"""Checks on the nodes of a Ray cluster: `isolation: ray`, found by name and imported by nothing else."""

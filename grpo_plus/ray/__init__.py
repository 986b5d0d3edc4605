"""Sweeps as tasks of a Ray cluster: `--on ray`, found by name and imported by nothing else."""

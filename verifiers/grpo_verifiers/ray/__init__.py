"""Checks on the nodes of a Ray cluster, for `isolation: ray`; imported by name only."""

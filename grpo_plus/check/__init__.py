"""Checks of a config, its data, model and memory, and of the machine; docs/check.md lists all kinds of findings."""

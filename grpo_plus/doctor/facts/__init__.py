"""Gatherers: each looks at this machine, at a model or at data, and returns what ``checks/`` judges."""

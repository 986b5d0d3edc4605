"""Checks of everything that a CPU cannot show, in order of importance: `python -m benchmarks.gpu`."""

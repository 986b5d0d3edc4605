"""Runs that are killed anywhere and resumed, compared with the uninterrupted run: `python -m benchmarks.resume`."""

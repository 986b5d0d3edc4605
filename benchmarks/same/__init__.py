"""Two versions of the project, run side by side and compared bit for bit: `python -m benchmarks.same`."""

"""Small changes of the product that the tests must find: `python -m benchmarks.mutants`."""

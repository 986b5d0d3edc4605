"""Sets of real numbers: intervals, conditions, functions by cases."""

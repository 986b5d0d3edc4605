"""One family of checks a file: pure functions from facts to findings, and the kinds of findings."""

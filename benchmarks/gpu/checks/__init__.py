"""The checks, a subject a file."""

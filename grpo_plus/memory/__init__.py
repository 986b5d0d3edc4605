"""Memory of a run: estimates, settings that fit, and retries in smaller parts after an out-of-memory error."""

"""Run checks: calls, batches, worker processes, event loops and HTTP requests."""

"""Run checks: calls, batches, worker processes, event loops and what is asked over HTTP."""

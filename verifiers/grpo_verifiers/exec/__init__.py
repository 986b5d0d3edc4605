"""Run checks: calls, batches, worker processes and asyncio."""

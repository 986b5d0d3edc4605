"""Requests in flight: a bound on their number, identical ones merged, successful ones remembered."""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any

from grpo_verifiers.verdict import Verdict


class Requests:
    """The requests to one endpoint. All of it runs in the loop for HTTP, so that the bound holds over all callers."""

    def __init__(self, concurrency: int, cache_size: int) -> None:
        self._turns = asyncio.Semaphore(concurrency)
        self._cache_size = cache_size
        self._cache: OrderedDict[str, Verdict] = OrderedDict()
        self._pending: dict[str, asyncio.Task[Verdict]] = {}

    async def verdict(self, key: str, job: Callable[[], Coroutine[Any, Any, Verdict]]) -> Verdict:
        """The verdict of ``key``: a remembered one, that of the same request on its way, or a new one's."""
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        task = self._pending.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(key, job))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all who asked may have gone
            if self._cache_size:
                self._pending[key] = task
        # Shielded: a caller that gives up must not take the request from others that wait for the same one.
        return await asyncio.shield(task)

    async def _ask(self, key: str, job: Callable[[], Coroutine[Any, Any, Verdict]]) -> Verdict:
        try:
            async with self._turns:
                verdict = await job()
        finally:
            self._pending.pop(key, None)
        if self._cache_size and verdict.score is not None:
            self._cache[key] = verdict
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return verdict


@lru_cache(maxsize=64)
def requests_to(url: str, concurrency: int, cache_size: int) -> Requests:  # noqa: ARG001 - one for each endpoint
    """The requests that all judges of an endpoint with these bounds share."""
    return Requests(concurrency, cache_size)


# The loop does not survive a fork: a child that inherited its requests would wait for them for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=requests_to.cache_clear)

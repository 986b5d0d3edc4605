"""Requests to the judge: retries with backoff, and the classification of failures.

The number in flight is limited.
"""

import asyncio
import json
import os
import random
import ssl
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.errors.messages import show
from grpo_verifiers.exec.http import exchange, retry_after

_TRANSIENT = frozenset({408, 409, 425, 429})
_CONFIGURATION = {
    **dict.fromkeys((301, 302, 303, 307, 308), "redirects; set base_url to the final address"),
    401: "wants another key; check the variable that api_key_env names",
    403: "forbids this; check the permissions of the key and the model's name",
    404: "does not know this address or model; check base_url (it ends before /chat/completions) and model",
    405: "takes no POST there; check base_url (it ends before /chat/completions)",
}
_MAX_DELAY = 60.0
_answered: set[str] = set()
"""Endpoints that have worked: where one later forbids a request, moderation objects to that completion."""
_jitter = random.SystemRandom()  # not the global generator: seeded runs must not depend on a server's mood


class JudgeConfigurationError(VerifierFailedError):
    """The endpoint, the key or the model is wrong: no completion can be judged before a repair."""


class JudgeRequestError(Exception):
    """The endpoint could not be reached, or did not answer as one: for any completion."""


class JudgeRefusalError(Exception):
    """The endpoint works and turned this request down, or its reply holds no score: the completion may be why."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a model's chat completions, and the limits of a request; the key is never part of a message.

    One attempt may take ``timeout`` seconds, first byte to last; ``retries`` come after the first one. ``backoff`` is
    the pause in seconds before the first retry, doubled for each further one.
    """

    url: str
    key: str | None
    timeout: float
    retries: int
    backoff: float

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"


async def ask(endpoint: Endpoint, body: dict[str, Any], until: float) -> str:
    """The judge's reply to a chat-completions request; it gives up when ``time.monotonic()`` is ``until``.

    Raises:
        JudgeConfigurationError: no request will ever succeed.
        JudgeRequestError: this one did not, for a reason outside the completion.
        JudgeRefusalError: this one did not, and the completion may be why.
    """
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "grpo-verifiers"}
    if endpoint.key is not None:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    for attempt in range(endpoint.retries + 1):
        left, wait = until - time.monotonic(), 0.0
        if left <= 0:
            raise JudgeRequestError("its time was up before its turn")
        try:
            status, reply_headers, reply = await exchange(endpoint.url, data, headers, min(endpoint.timeout, left))
        except OSError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise JudgeConfigurationError(f"judge: {endpoint.url} has no certificate to trust: {error}.") from error
            problem = _without(endpoint.key, f"{type(error).__name__}: {error}")  # it may quote the server
        else:
            if status == 200:
                try:
                    text = content_of(reply)
                except ValueError as error:
                    problem = f"the endpoint's answer cannot be read: {error}"
                else:
                    _answered.add(endpoint.url)
                    return text
            else:
                problem = f"HTTP {status}: {_excerpt(reply, endpoint.key)}"
                if status in _CONFIGURATION and not (status == 403 and endpoint.url in _answered):
                    raise JudgeConfigurationError(f"judge: {endpoint.url} {_CONFIGURATION[status]} ({problem}).")
                if status not in _TRANSIENT and status < 500:
                    raise JudgeRefusalError(problem)
                wait = retry_after(reply_headers)
        if attempt < endpoint.retries:
            pause = max(wait, min(_MAX_DELAY, endpoint.backoff * 2.0**attempt) * _jitter.uniform(0.5, 1.0))
            if time.monotonic() + pause >= until:
                raise JudgeRequestError(f"{problem}; no time left for a pause of {pause:.0f} s")
            await asyncio.sleep(pause)
    raise JudgeRequestError(f"{problem} (after {endpoint.retries + 1} attempts)")


def content_of(reply: bytes) -> str:
    """The text of a chat completion's only choice; ValueError without one."""
    try:
        value = json.loads(reply)
        text = value["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {show(str(error), 100)} in {_excerpt(reply, None)}") from error
    if text is not None and not isinstance(text, str):
        raise ValueError(f"its content is {type(text).__name__}, not a string")
    return text or ""


def _excerpt(reply: bytes, key: str | None) -> str:
    text = reply[:2000].decode("utf-8", "replace")
    return show(_without(key, text), 200)


def _without(key: str | None, text: str) -> str:
    return text.replace(key, "[key]") if key else text


@lru_cache(maxsize=64)
def turns_for(url: str, concurrency: int) -> asyncio.Semaphore:  # noqa: ARG001 - one for each endpoint
    """The bound of all judges of an endpoint; for the loop for HTTP only, so that it holds over all callers."""
    return asyncio.Semaphore(concurrency)


# The loop does not survive a fork: a child that inherited a bound would wait for turns for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=turns_for.cache_clear)

"""HTTP by httpx: a deadline for the complete exchange, a size limit, proxies of the environment, no redirects."""

import asyncio
import functools
import logging
import os
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from grpo_verifiers.exec.loop import HTTP_THREAD

MAX_REPLY = 4 << 20
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy")
"""Loggers of httpx. Each request logs addresses and headers: requests of this module are filtered out."""


_OTHER_ERRORS = (ImportError, OverflowError, RuntimeError, ExceptionGroup)
"""Errors of a missing proxy package, a port beyond 65535 (bare or in a group), an interpreter at its end."""


class ResponseTooLargeError(OSError):
    """The response exceeds the size limit."""


async def exchange(
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    seconds: float,
    *,
    method: str = "POST",
    limit: int = MAX_REPLY,
) -> tuple[int, Mapping[str, str], bytes]:
    """Send a request; return the status, the headers and the answer's body, whatever the status.

    No other host than the one in ``url``, an http or https address, gets the headers. The clock runs from the
    connection to the last byte.

    Raises:
        TimeoutError: no complete answer in time.
        ResponseTooLargeError: the answer has more than ``limit`` bytes.
        OSError: the connection failed, or the answer is no HTTP.
    """
    import httpx

    for logger in map(logging.getLogger, _LOGGERS):
        logger.addFilter(_is_foreign)  # at most once: it is the same function
    # A compressed answer could unpack to any size: none is requested, and none is unpacked.
    headers = {"Accept-Encoding": "identity", "Connection": "close", **headers}
    data = bytearray()
    try:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(verify=_context(), proxy=_proxy(url), trust_env=False, timeout=None) as client,  # noqa: S113 - the timeout is above
            client.stream(method, url, content=body, headers=headers) as reply,
        ):
            async for part in reply.aiter_raw():
                data += part
                if len(data) > limit:
                    raise ResponseTooLargeError(f"the answer is larger than {limit / 2**20:.3g} MiB")
            return reply.status_code, reply.headers, bytes(data)
    except TimeoutError as error:
        raise TimeoutError(f"no complete answer in {seconds:g} s") from error
    except (httpx.LocalProtocolError, UnicodeEncodeError):  # its text repeats the header, which may be a key
        raise ConnectionError("a header or the address holds characters that HTTP does not have") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, *_OTHER_ERRORS) as error:
        reason = next((cause for cause in _causes(error) if isinstance(cause, OSError)), None)
        if reason is None:
            first = next(_causes(error)) if isinstance(error, ExceptionGroup) else error
            words = str(first).partition(": bytearray(")[0]  # the rest is a line of the server, of any length
            reason = ConnectionError(f"{type(first).__name__}: {words}")
        elif reason.errno is not None and reason.errno > 0 and not isinstance(reason, ssl.SSLError):
            reason = OSError(reason.errno, os.strerror(reason.errno))  # the text of asyncio is less specific
        raise reason from None


def _is_foreign(record: logging.LogRecord) -> bool:
    return record.threadName != HTTP_THREAD


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait; 0 by default, and for a date."""
    value = (headers.get("Retry-After") or "").strip()
    return float(value[:12]) if value.isascii() and value.replace(".", "", 1).isdigit() else 0.0


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for an address."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The causes of an exception, the root cause first: the message of httpx is unspecific."""
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for cause in (*parts, error.__cause__ or error.__context__):
        if cause is not None:
            yield from _causes(cause)
    yield error


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()

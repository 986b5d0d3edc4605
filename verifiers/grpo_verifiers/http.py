"""One request with a deadline for the whole exchange, a cap on the answer, proxies of the environment, no redirects."""

import contextlib
import functools
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import Any, Self

MAX_REPLY = 4 << 20


class TooLargeError(http.client.HTTPException):
    """The answer has more bytes than were asked for."""


class _Deadline:
    """Shuts a connection down when its time is up: socket timeouts alone start anew with every byte that trickles."""

    def __init__(self, seconds: float) -> None:
        self.expired = False
        self._socks: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for sock in self._socks:
                sock.close()
            self._socks.clear()

    def connected(self, *address: Any, **options: Any) -> socket.socket:
        """Connect as ``socket.create_connection`` does, and watch the connection from its first byte on."""
        sock = socket.create_connection(*address, **options)
        with self._lock:
            # A copy of the descriptor: TLS takes the socket itself over, before its handshake.
            self._socks.append(sock.dup())
            if self.expired:
                self._cut()
        return sock

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            self._cut()

    def _cut(self) -> None:
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Plain(http.client.HTTPConnection):
    def __init__(self, deadline: _Deadline, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = deadline.connected


class _Secure(http.client.HTTPSConnection):
    def __init__(self, deadline: _Deadline, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = deadline.connected


class _PlainHandler(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_Plain, self._deadline), req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_Secure, self._deadline), req, context=_context())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Following one would send the key to a host that nobody configured, and turn a POST into a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def exchange(
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    timeout: float,
    *,
    method: str = "POST",
    limit: int = MAX_REPLY,
) -> tuple[int, Message, bytes]:
    """Send a request; return the status, the headers and the answer's body, whatever the status.

    Args:
        url: an http or https address.
        body: to send, or None.
        headers: to send; no other host than the one in ``url`` gets them.
        timeout: seconds from the connection to the last byte.
        method: of the request.
        limit: bytes of the answer that are read at most.

    Raises:
        TimeoutError: no complete answer in time.
        OSError: the connection failed (``URLError`` is one).
        TooLargeError: the answer has more than ``limit`` bytes.
        http.client.HTTPException: the answer is no HTTP.
    """
    request = urllib.request.Request(url, body, dict(headers), method=method)  # noqa: S310 - http(s): checked before
    with _Deadline(timeout) as deadline:
        opener = urllib.request.build_opener(_PlainHandler(deadline), _SecureHandler(deadline), _NoRedirect())
        try:
            try:
                reply = opener.open(request, timeout=timeout)
            except urllib.error.HTTPError as error:
                reply = error
            with reply:
                data = reply.read(limit + 1)
        except (OSError, http.client.HTTPException) as error:
            if deadline.expired or isinstance(getattr(error, "reason", None), TimeoutError):
                raise TimeoutError(f"no complete answer within {timeout:g} s") from error
            raise
        if deadline.expired:
            raise TimeoutError(f"no complete answer within {timeout:g} s")
    if len(data) > limit:
        raise TooLargeError(f"the answer is larger than {limit / 2**20:.3g} MiB")
    return reply.status, reply.headers, data

"""One POST with a deadline for the whole exchange, a cap on the answer, proxies from the environment, no redirects."""

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


class _Deadline:
    """Shuts a connection down when its time is up: socket timeouts alone start anew with every byte that trickles."""

    def __init__(self, seconds: float) -> None:
        self.expired = False
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, sock: socket.socket) -> None:
        with self._lock:
            self._sock = sock
            if self.expired:
                self._cut()

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            self._cut()

    def _cut(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                # Of the plain socket: TLS sockets would first change state that another thread is reading with.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


class _Plain(http.client.HTTPConnection):
    def __init__(self, deadline: _Deadline, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.watch(self.sock)


class _Secure(http.client.HTTPSConnection):
    def __init__(self, deadline: _Deadline, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.watch(self.sock)


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
    """Following one would send the key to a host that nobody configured, and turn the POST into a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def post(url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> tuple[int, Message, bytes]:
    """Send ``body``; return the status, the headers and the answer's body, whatever the status.

    Raises:
        TimeoutError: no complete answer within ``timeout`` seconds.
        OSError: the connection failed (``URLError`` is one).
        http.client.HTTPException: the answer is no HTTP, or larger than ``MAX_REPLY``.
    """
    request = urllib.request.Request(url, body, dict(headers), method="POST")  # noqa: S310 - http(s): checked before
    with _Deadline(timeout) as deadline:
        opener = urllib.request.build_opener(_PlainHandler(deadline), _SecureHandler(deadline), _NoRedirect())
        try:
            try:
                reply = opener.open(request, timeout=timeout)
            except urllib.error.HTTPError as error:
                reply = error
            with reply:
                data = reply.read(MAX_REPLY + 1)
        except (OSError, http.client.HTTPException) as error:
            if deadline.expired or isinstance(getattr(error, "reason", None), TimeoutError):
                raise TimeoutError(f"no complete answer within {timeout:g} s") from error
            raise
        if deadline.expired:
            raise TimeoutError(f"no complete answer within {timeout:g} s")
    if len(data) > MAX_REPLY:
        raise http.client.HTTPException(f"the answer is larger than {MAX_REPLY >> 20} MiB")
    return reply.status, reply.headers, data

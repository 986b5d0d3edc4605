"""What `exchange` does that httpx alone does not: compressed answers, keys in messages, forks, busy loops."""

import gzip
import logging
import os
import threading
import time

import httpx
import pytest

from grpo_verifiers.exec.http import exchange, retry_after
from grpo_verifiers.exec.loop import loop_thread, wait_http

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


@pytest.fixture
def answering(endpoint):
    """A server that answers the same to all, and its address."""
    return lambda body, **headers: endpoint(lambda *_: (200, headers, body))


def get(url, headers=(), **options):
    return wait_http(exchange(url, None, dict(headers), 10.0, method="GET", **options))


def test_a_forked_child_can_ask_too(answering):
    url = answering(b"here").url
    assert get(url)[2] == b"here"
    child = os.fork()
    if child == 0:
        os._exit(0 if get(url)[2] == b"here" else 1)
    end = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.02)
    assert ended == (child, 0)


def test_ports_that_do_not_exist_fail_and_answers_are_not_unpacked(answering):
    for port in [65536, 99999]:
        with pytest.raises(ConnectionError, match="port must be 0-65535"):
            get(f"http://127.0.0.1:{port}/")
    packed = gzip.compress(b"x" * (1 << 20))
    server = answering(packed, **{"Content-Encoding": "gzip"})
    assert (get(server.url, limit=1 << 16)[2], server.headers[0]["Accept-Encoding"]) == (packed, "identity")
    with pytest.raises(OSError, match="characters") as caught:
        get(answering(b"").url, {"Authorization": "Bearer se\ncret"})
    assert "cret" not in str(caught.value)
    loop, free = loop_thread("grpo-verifiers-async").loop, threading.Event()
    loop.call_soon_threadsafe(free.wait)
    try:
        assert get(answering(b"here").url)[2] == b"here"
    finally:
        free.set()
    server = answering(b"", **{"Retry-After": "Mon, 01 Jan 2024 00:00:00 +99999999999999999"})
    assert retry_after(get(server.url)[1]) == 0


def test_addresses_do_not_reach_the_log_and_requests_of_others_stay_in_it(answering, caplog):
    for name in ("httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, logger=name)
    url = answering(b"", **{"Set-Cookie": "a=cookie"}).url
    get(f"{url}/private", {"Authorization": "Bearer key"})
    with pytest.raises(OSError, match="characters"):
        get(url, {"Authorization": "Bearer se\ncret"})
    assert not [record.getMessage() for record in caplog.records if record.name.startswith(("httpx", "httpcore"))]
    url = answering(b"").url
    with caplog.at_level(logging.INFO, logger="httpx"):
        get(url)
        httpx.get(url, trust_env=False)
    assert [record.name for record in caplog.records] == ["httpx"]


def test_a_request_while_the_interpreter_ends_fails_like_any_other(python):
    code = (
        "import atexit\nfrom grpo_verifiers.exec.http import exchange\nfrom grpo_verifiers.exec.loop import wait_http\ndef ask():\n"
        "    try: wait_http(exchange('http://localhost:1/', None, {}, 5.0))\n    except OSError: print('failed', flush=True)\natexit.register(ask)\n"
    )
    assert python(code).stdout == "failed\n"

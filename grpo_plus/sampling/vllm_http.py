"""Client for the requests to a vLLM server that training needs; vLLM itself is not required."""

import asyncio
import json
import math
import os
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from grpo_verifiers.errors.messages import readable
from grpo_verifiers.exec.http import MAX_REPLY, ResponseTooLargeError, exchange
from grpo_verifiers.exec.loop import wait_http
from grpo_verifiers.redaction import RedactedError

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry of a request that did not reach the server or found it busy."""
AT_ONCE = 64
"""Concurrent requests; the server batches them."""
BUSY = (429, 502, 503, 504)
REDIRECTS = (301, 302, 303, 307, 308)
MARK = "grpo_plus_weights"
"""The attribute of a server's workers with the name of the loaded weights."""
TOKEN_BYTES = 512
"""Most bytes of a response for one token: its id, its log-probability, its text in three fields."""
LOGPROB_BYTES = 64
"""Most bytes of a response for one more log-probability."""


class ServerError(RedactedError, RuntimeError):
    """The server cannot be reached or a request failed; the message names the setting to change."""


class ServerLostError(ServerError):
    """The server stopped responding or reports that it broke: it may come back."""


class UnknownModelError(ServerError):
    """The server has no model of the requested name; after a restart it has no adapters."""


class Client:
    """A client of one server, at a url like ``http://localhost:8000``.

    ``patience`` is the time to wait for a server to start, ``timeout`` the time of a request up to the last byte of the
    response, both in seconds. The key in ``VLLM_API_KEY`` is sent to this address only: redirects are not followed.
    """

    def __init__(self, url: str, *, patience: float, timeout: float = 1800.0) -> None:
        url = url.rstrip("/").removesuffix("/v1")
        try:
            netloc = urllib.parse.urlsplit(url).netloc if url.startswith(("http://", "https://")) else ""
        except ValueError:  # brackets around an invalid address
            netloc = ""
        if not netloc:
            raise ServerError(f"vllm_server_base_url is {url!r}, expected something like http://localhost:8000.")
        if "@" in netloc:
            raise ServerError(
                "vllm_server_base_url holds a user or password: leave them out, and put a key into VLLM_API_KEY."
            )
        self.url = url
        self.patience = patience
        self._timeout = timeout

    def wait(self) -> None:
        """Return once the server is up."""
        end = time.monotonic() + self.patience
        while True:
            try:
                status, text = wait_http(self._once("GET", "/health", None, seconds=10.0))
                why = f"HTTP {status}: {readable(text, 200)}"
            except OSError as error:
                status, why = 0, str(error)
            if status == 200:
                return
            if time.monotonic() >= end:
                raise ServerError(
                    f"no vLLM server answers at {self.url} within {self.patience:g} s ({why}). Start one, or set "
                    "vllm_server_base_url (or vllm_server_host and vllm_server_port) and vllm_server_timeout."
                )
            time.sleep(min(1.0, max(0.05, end - time.monotonic())))

    def alive(self) -> bool:
        """Return True if the server reports that it is healthy; one with a broken engine responds with an error."""
        return self.request("GET", "/health", None)[0] == 200

    def models(self) -> list[dict[str, Any]]:
        """Return the served models: base models, and adapters with their ``parent``."""
        models = wait_http(self._json("GET", "/v1/models", None)).get("data")
        if not isinstance(models, list) or not all(isinstance(item, dict) for item in models):
            raise ServerError(f"{self.url}/v1/models does not list models: is it a vLLM server?")
        return models

    def takes_adapters(self) -> bool:
        """Return True if adapters can be loaded at runtime; without permission the address does not exist."""
        return self.request("POST", "/v1/load_lora_adapter", {})[0] not in (404, 405)

    def takes_calls(self) -> bool:
        """Return True if methods of the workers can be called, as in development mode."""
        return self.request("POST", "/collective_rpc", {})[0] not in (404, 405)

    def mark(self, text: str) -> tuple[int, str]:
        """Set a mark on the workers, lost on restart; returns status and text of the response."""
        return self.request("POST", "/collective_rpc", {"method": "__setattr__", "args": [MARK, text]})

    def marks(self) -> list[str]:
        """Return the marks of the workers; empty without marks or if they cannot be called."""
        status, text = self.request("POST", "/collective_rpc", {"method": "__getattribute__", "args": [MARK]})
        try:
            marks = json.loads(text)["results"] if status == 200 else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
        return [str(mark) for mark in marks] if isinstance(marks, list) else []

    def load(self, name: str, path: str) -> str | None:
        """Load an adapter from a folder that the server can read; returns the reason of a failure."""
        status, text = self.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        # Names are never used twice, so an adapter already loaded means that the response was lost.
        if status == 200 or "already been loaded" in text:
            return None
        return f"HTTP {status}: {message(text)}"

    def unload(self, name: str) -> None:
        """Remove an adapter; a missing one is no error."""
        self.request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def complete(
        self, *payloads: dict[str, Any], read: Callable[[list[dict[str, Any]]], list[Any]] = list
    ) -> list[list[Any]]:
        """Return the choices of each completion request, in order; the first failure cancels the rest.

        ``read`` converts each response as it arrives: with many log-probabilities all responses together would take a
        hundred times the memory of the result.
        """
        return wait_http(self._all(payloads, read))

    async def _all(
        self, payloads: Sequence[dict[str, Any]], read: Callable[[list[dict[str, Any]]], list[Any]]
    ) -> list[list[Any]]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(payload: dict[str, Any]) -> list[Any]:
            async with turns:
                return read(await self._complete(payload))

        tasks = [asyncio.create_task(one(payload)) for payload in payloads]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _complete(self, payload: dict[str, Any]) -> list[dict[str, Any]]:
        reply = (await self._json("POST", "/v1/completions", payload, limit=largest_answer(payload))).get("choices")
        choices = [choice for choice in reply if isinstance(choice, dict)] if isinstance(reply, list) else []
        places = [choice.get("index", 0) for choice in choices]
        if len(choices) != payload["n"] or not all(isinstance(place, int) for place in places):
            raise ServerError(f"{self.url}/v1/completions did not return {payload['n']} completions but {reply!r:.200}")
        for choice in choices:
            if fault := _fault(choice, payload.get("max_tokens") or math.inf):
                raise ServerError(f"{self.url}/v1/completions returned {fault} Restart vLLM, or update it.")
        return [choice for _, choice in sorted(zip(places, choices, strict=True), key=itemgetter(0))]

    async def _json(self, method: str, path: str, body: Any, *, limit: int = MAX_REPLY) -> dict[str, Any]:
        status, text = await self._request(method, path, body, limit=limit)
        if status in REDIRECTS:
            raise ServerError(
                f"{self.url}{path} redirects (HTTP {status}), which is not followed: set vllm_server_base_url to the "
                "final address."
            )
        if status != 200:
            kind = ServerLostError if status >= 500 else UnknownModelError if status == 404 else ServerError
            hint = " Put the server's --api-key into VLLM_API_KEY." * (status in (401, 403))
            raise kind(f"{self.url}{path} answered HTTP {status}: {message(text)}{hint}")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{self.url}{path} answered no JSON: {text[:200]!r}") from error
        if not isinstance(value, dict):
            raise ServerError(f"{self.url}{path} answered {text[:200]!r}, expected an object.")
        return value

    def request(self, method: str, path: str, body: Any) -> tuple[int, str]:
        """Return status and text of a response, with retries while the server is busy or unreachable."""
        return wait_http(self._request(method, path, body))

    async def _request(self, method: str, path: str, body: Any, *, limit: int = MAX_REPLY) -> tuple[int, str]:
        for pause in (*PAUSES, None):
            try:
                status, text = await self._once(method, path, body, seconds=self._timeout, limit=limit)
            except TimeoutError as error:
                raise ServerError(f"{self.url}{path} gave no answer within {self._timeout:g} s.") from error
            except ResponseTooLargeError as error:
                raise ServerError(f"{self.url}{path}: {error}, which is more than this request can need.") from error
            except OSError as error:
                if pause is None:
                    raise ServerLostError(f"{self.url}{path} cannot be reached any more: {error}.") from error
            else:
                if status not in BUSY or pause is None:
                    return status, text
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _once(
        self, method: str, path: str, body: Any, *, seconds: float, limit: int = MAX_REPLY
    ) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['VLLM_API_KEY']}"
        status, _, reply = await exchange(self.url + path, data, headers, seconds, method=method, limit=limit)
        return status, reply.decode("utf-8", "replace")


def largest_answer(payload: Mapping[str, Any]) -> int:
    """Return the limit on the bytes of a response to a completion request."""
    tokens = int(payload.get("max_tokens") or 16) + len(payload.get("prompt") or ())  # 16: the protocol's default
    each = TOKEN_BYTES + LOGPROB_BYTES * int(payload.get("logprobs") or 0)
    return MAX_REPLY + each * int(payload["n"]) * tokens


def _fault(choice: dict[str, Any], most: float) -> str | None:
    """Return the first impossible value among a choice's tokens and log-probabilities, in words."""
    ids, probabilities = choice.get("token_ids"), choice.get("logprobs")
    logps = probabilities.get("token_logprobs") if isinstance(probabilities, dict) else None
    if not isinstance(ids, list) or not ids or not isinstance(logps, list) or len(logps) != len(ids):
        return "a completion without its token ids and their log-probabilities: it must know return_token_ids."
    if wrong := [each for each in ids if type(each) is not int or each < 0]:
        return f"{wrong[0]!r:.40} as a token id, expected an integer of at least 0."
    if wrong := [each for each in logps if each is not None and not _is_logp(each)]:
        return f"{wrong[0]!r:.40} as the log-probability of a token, expected a finite number of at most 0."
    return f"{len(ids)} tokens, expected at most {most} (max_completion_length)." if len(ids) > most else None


def _is_logp(value: Any) -> bool:
    return type(value) in (int, float) and -math.inf < value <= 0


def message(text: str) -> str:
    """Return the server's error message; releases differ in its place."""
    try:
        value = json.loads(text)
        inner = value.get("error", value)
        text = str(inner.get("message", text) if isinstance(inner, dict) else inner)
    except (ValueError, AttributeError, RecursionError):
        pass
    return readable(text, 500)

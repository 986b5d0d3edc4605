"""The few requests to a vLLM server that adapter-only training needs; vLLM itself need not be installed here."""

import json
import os
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further try of a request that did not reach the server, or met a busy one."""
BUSY = (429, 502, 503, 504)


class ServerError(RuntimeError):
    """The server cannot be reached, or does not do what is asked; the message says what to change."""


class Client:
    """Talks to one server.

    Args:
        url: where it listens, like ``http://localhost:8000``.
        patience: seconds to wait for a server that is still starting.
        timeout: seconds that one request may take.
    """

    def __init__(self, url: str, *, patience: float, timeout: float = 1800.0) -> None:
        url = url.rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise ServerError(f"vllm_server_base_url is {url!r}, expected something like http://localhost:8000.")
        self.url = url
        self._patience = patience
        self._timeout = timeout

    def wait(self) -> None:
        """Return once the server is up.

        Raises:
            ServerError: it is not, within the patience.
        """
        end = time.monotonic() + self._patience
        while True:
            try:
                status, text = self._once("GET", "/health", None, timeout=10.0)
                why = f"HTTP {status}: {text[:200]}"
            except (OSError, HTTPException) as error:
                status, why = 0, str(getattr(error, "reason", error))
            if status == 200:
                return
            if time.monotonic() >= end:
                raise ServerError(
                    f"no vLLM server answers at {self.url} within {self._patience:g} s ({why}). Start one, or set "
                    "vllm_server_base_url (or vllm_server_host and vllm_server_port) and vllm_server_timeout."
                )
            time.sleep(min(1.0, max(0.05, end - time.monotonic())))

    def models(self) -> list[dict[str, Any]]:
        """What it serves: base models, and adapters with their ``parent``."""
        found = self._json("GET", "/v1/models", None).get("data")
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise ServerError(f"{self.url}/v1/models does not list models: is it a vLLM server?")
        return found

    def takes_adapters(self) -> bool:
        """Whether adapters can be loaded while it runs: without the permission, the address does not exist."""
        return self.request("POST", "/v1/load_lora_adapter", {})[0] not in (404, 405)

    def logprobs_mode(self) -> str | None:
        """Which log-probabilities it returns, where it says so (servers in development mode do)."""
        status, text = self.request("GET", "/server_info?config_format=json", None)
        try:
            return str(json.loads(text)["model_config"]["logprobs_mode"]) if status == 200 else None
        except (ValueError, KeyError, TypeError):
            return None

    def load(self, name: str, path: str) -> str | None:
        """Load an adapter from a folder that the server sees; returns why it could not."""
        status, text = self.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        # Names are never used twice, so one that is there already came with an answer that was lost on the way.
        if status == 200 or "already been loaded" in text:
            return None
        return f"HTTP {status}: {_message(text)}"

    def unload(self, name: str) -> None:
        """Take an adapter out; one that is gone already is fine."""
        self.request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def complete(self, payload: dict[str, Any]) -> list[dict[str, Any]]:
        """The choices of a completion request, in their order."""
        choices = self._json("POST", "/v1/completions", payload).get("choices")
        if not isinstance(choices, list) or len(choices) != payload["n"]:
            raise ServerError(f"{self.url}/v1/completions was asked for {payload['n']} completions: {choices!r:.200}")
        return sorted(choices, key=lambda choice: int(choice.get("index", 0)))

    def _json(self, method: str, path: str, body: Any) -> dict[str, Any]:
        status, text = self.request(method, path, body)
        if status != 200:
            raise ServerError(f"{self.url}{path} answered HTTP {status}: {_message(text)}")
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ServerError(f"{self.url}{path} answered no JSON: {text[:200]!r}") from error
        if not isinstance(found, dict):
            raise ServerError(f"{self.url}{path} answered {text[:200]!r}, expected an object.")
        return found

    def request(self, method: str, path: str, body: Any) -> tuple[int, str]:
        """Status and text of an answer, trying again while the server is busy or cannot be reached."""
        for pause in (*PAUSES, None):
            try:
                status, text = self._once(method, path, body, timeout=self._timeout)
            except TimeoutError as error:
                raise ServerError(f"{self.url}{path} gave no answer within {self._timeout:g} s.") from error
            except (OSError, HTTPException) as error:
                if isinstance(getattr(error, "reason", None), TimeoutError):
                    raise ServerError(f"{self.url}{path} gave no answer within {self._timeout:g} s.") from error
                if pause is None:
                    why = getattr(error, "reason", error)
                    raise ServerError(f"{self.url}{path} cannot be reached any more: {why}.") from error
            else:
                if status not in BUSY or pause is None:
                    return status, text
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _once(self, method: str, path: str, body: Any, *, timeout: float) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['VLLM_API_KEY']}"
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - http(s): checked
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:  # noqa: S310 - same
                return reply.status, reply.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode("utf-8", "replace")


def _message(text: str) -> str:
    """The server's own words in an error, wherever its release puts them."""
    try:
        found = json.loads(text)
        inner = found.get("error", found)
        return str(inner.get("message", text) if isinstance(inner, dict) else inner)[:500]
    except (ValueError, AttributeError):
        return text[:500]

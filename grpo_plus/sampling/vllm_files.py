"""All weights, as safetensors in a folder that a vLLM server sees, which it loads in place.

No process group joins trainer and server, so it works without NCCL: on a CPU, on machines of two kinds, across a shared
disk. The server must run in development mode, which lets anybody who reaches it call methods of its workers.

Each of its workers carries a mark that names the version it has loaded. A server that was restarted has the weights of
its start and no mark, and one that another run has written to has another mark: neither goes unnoticed.
"""

import json
from pathlib import Path

from grpo_plus.sampling.vllm_http import Client, message
from grpo_plus.sampling.vllm_push import Weights

MARK = "grpo_plus_weights"
"""The attribute of the server's workers that names what they have loaded."""


class FilePush:
    """Hands over all weights."""

    folder = "vllm_weights"

    def command(self, name: str) -> str:
        """See `Push.command`."""
        return f"VLLM_SERVER_DEV_MODE=1 vllm serve {name} --logprobs-mode processed_logprobs"

    def refusal(self, client: Client) -> str | None:
        """See `Push.refusal`."""
        return None if client.takes_calls() else "has no /collective_rpc, so it cannot be told to load weights"

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """See `Push.save`."""
        tensors = weights.tensors(lambda _: True)
        if write:
            weights.model().save_pretrained(path, state_dict=None if tensors is None else dict(tensors))

    def load(self, client: Client, version: str, path: Path) -> str | None:
        """See `Push.load`: the mark goes first, and comes back when all is there."""
        for name, body in (
            ("__setattr__", {"args": [MARK, ""]}),
            ("reload_weights", {"kwargs": {"weights_path": str(path)}}),
            ("__setattr__", {"args": [MARK, version]}),
        ):
            status, text = client.request("POST", "/collective_rpc", {"method": name, **body})
            if status != 200:
                return f"HTTP {status}: {message(text)}"
        status, text = client.request("POST", "/reset_prefix_cache", None)
        return None if status == 200 else f"/reset_prefix_cache: HTTP {status}: {message(text)}"

    def holds(self, client: Client, version: str) -> bool:
        """See `Push.holds`: all workers have the mark."""
        status, text = client.request("POST", "/collective_rpc", {"method": "__getattribute__", "args": [MARK]})
        return status == 200 and set(marks(text)) == {version}

    def unload(self, client: Client, version: str) -> None:
        """See `Push.unload`: the next weights take the place of these."""

    def asked(self, name: str, version: str) -> str:  # noqa: ARG002
        """See `Push.asked`."""
        return name


def marks(text: str) -> list[str]:
    """What each worker answered."""
    try:
        found = json.loads(text)["results"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [str(item) for item in found] if isinstance(found, list) else []
